#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "src/help/command_page.h"

namespace lockstep {

// The arguments after the command's name on the command line.
struct Args : std::span<char*> {
  CommandPage* page = nullptr;  // where the command is described instead of run; null: it is run
};

// One row of the table of commands in main.cc. A command reads its arguments, does its work, prints
// its result to stdout and returns the exit status, 0 alike or 1 different. Trouble is an Error,
// which main turns into 2. To add one: write tools/<name>.cc, declare it below, and add its row.
struct Command {
  std::string_view name;
  std::string_view situation;  // the question that it answers; neighbours share it
  std::string_view summary;
  int (*run)(Args args);
  bool computes = false;  // tensors: then its process is prepared for that (src/session/process.h)
};
std::span<const Command> commands();

// The description of each command by itself, in the order of the table.
std::vector<CommandPage> command_pages();

int generate_command(Args args);
int run_command(Args args);
int judge_command(Args args);
int calibrate_command(Args args);
int check_command(Args args);
int ops_command(Args args);
int diff_command(Args args);
int report_command(Args args);
int inspect_command(Args args);
int replay_command(Args args);
int repro_command(Args args);
int schedule_command(Args args);
int points_command(Args args);
int model_command(Args args);
int faults_command(Args args);
int selftest_command(Args args);
int bench_command(Args args);
int help_command(Args args);
int completions_command(Args args);
int man_command(Args args);

}  // namespace lockstep
