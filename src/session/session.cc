#include "src/session/session.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/plugin/user_ops.h"
#include "src/session/device.h"
#include "src/session/instructions.h"
#include "src/session/requests.h"

namespace lockstep {

std::string Session::text_of(const std::vector<int32_t>& tokens) const {
  return tokenizer ? tokenizer->decode(tokens) : "";
}

const Tokenizer& Session::wanted_tokenizer() const {
  check(tokenizer.has_value(),
        "generate prints text, but {} has no tokenizer.json: add it, or give --tokens with "
        "--format json, which shows tokens alone then",
        checkpoint.dir());
  return *tokenizer;
}

// The order matters: the device is opened before its ops are asked for, and --ops replaces some of
// them last.
Session open_model(const ModelOptions& options) {
  Session session{.checkpoint = Checkpoint::open(options.model)};
  session.engine = options.engine_for(session.checkpoint.config());
  session.engine.device = open_device(options.device);
  check(options.graph != "on" || session.engine.device != Device::cpu,
        "--graph on needs a device that has graphs: add --device cuda");
  check(options.graph != "on" || options.ops.empty(),
        "--graph on was found with --ops, whose outputs are looked at after every call: leave one "
        "out");
  session.engine.graph =
      session.engine.device != Device::cpu && options.graph != "off" && options.ops.empty();
  session.ops = ops_of(session.engine.device);
  std::vector<std::string> replaced_names;
  if (!options.ops.empty()) {
    ReplacedOps replaced = replace_ops(session.ops, options.ops, session.engine.device);
    session.ops = std::move(replaced.ops);
    session.user_op_calls = std::make_shared<UserOpCalls>(options.ops, replaced.names);
    session.user_op_calls->count(session.ops);
    session.user_ops = session.user_op_calls->text();
    session.user_ops_file = options.ops;
    replaced_names = replaced.names;
  }
  use_executor(options.instructions, replaced_names, session);
  if (!std::filesystem::exists(std::filesystem::path(options.model) / "tokenizer.json"))
    return session;
  session.tokenizer = Tokenizer::open(options.model);
  session.engine.text_of = [tokenizer = *session.tokenizer](std::span<const int32_t> tokens) {
    return tokenizer.decode(tokens);
  };
  return session;
}

namespace {

// On a CPU memory is handed out by its addresses, and the lists of pages alone may fill it.
void check_memory(const Session& session) {
  const EngineOptions& engine = session.engine;
  constexpr int64_t kLargestPage = 256;  // tokens; of larger ones the engine says more
  if (engine.device != Device::cpu || engine.page_size > kLargestPage) return;
  const int64_t page =
      session.checkpoint.config().kv_bytes_per_token(engine.dtype) * engine.page_size;
  const int64_t there = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  check(engine.pages <= there / page,
        "{} pages of the K/V cache take more memory than this machine has, which is {} pages: "
        "lower --max-new, or say how many --pages there are to be, for which requests wait then",
        engine.pages, there / page);
}

}  // namespace

Session open_session(const ModelOptions& options) {
  Session session = open_model(options);
  session.requests = requests_from(options, session.checkpoint.config(),
                                   session.tokenizer ? &*session.tokenizer : nullptr);
  if (session.engine.pages == 0)
    session.engine.pages = pages_for(session.requests, session.engine.page_size);
  check_memory(session);
  return session;
}

}  // namespace lockstep
