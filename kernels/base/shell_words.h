// A command line as one text, as a POSIX shell reads it.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace lockstep {

// The words, each quoted where a shell would not take it as it is.
std::string shell_text(std::span<const std::string> words);

// The words of such a text: single quotes, double quotes and backslashes are taken off. A quote
// that does not end holds the rest. Never throws for what a text holds; variables and patterns stay
// as they are.
std::vector<std::string> shell_words(const std::string& text);

}  // namespace lockstep
