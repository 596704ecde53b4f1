#pragma once

#include <span>

namespace lockstep {

// The arguments after the command's name on the command line.
using Args = std::span<char*>;

// Each is one command: it reads its arguments, does its work, prints its result to stdout and
// returns the exit status, 0 alike or 1 different. Trouble is an Error, which main turns into 2. To
// add one: write tools/<name>.cc, declare it here, and add a row to the table in main.cc.
int generate_command(Args args);
int run_command(Args args);
int judge_command(Args args);
int calibrate_command(Args args);
int check_command(Args args);
int diff_command(Args args);
int report_command(Args args);
int inspect_command(Args args);
int points_command(Args args);
int model_command(Args args);
int faults_command(Args args);
int selftest_command(Args args);
int bench_command(Args args);

}  // namespace lockstep
