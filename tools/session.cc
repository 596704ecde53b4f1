#include "tools/session.h"

#include <filesystem>

#include "tools/requests.h"

namespace lockstep {

std::string Session::text_of(const std::vector<int32_t>& tokens) const {
  return tokenizer ? tokenizer->decode(tokens) : "";
}

Session open_session(const ModelOptions& options) {
  Session session{.checkpoint = Checkpoint::open(options.model)};
  if (std::filesystem::exists(std::filesystem::path(options.model) / "tokenizer.json"))
    session.tokenizer = Tokenizer::open(options.model);
  const ModelConfig& config = session.checkpoint.config();
  session.requests =
      requests_from(options, config, session.tokenizer ? &*session.tokenizer : nullptr);
  session.engine = engine_options_of(options, config);
  if (session.engine.pages == 0)
    session.engine.pages = pages_for(session.requests, session.engine.page_size);
  return session;
}

}  // namespace lockstep
