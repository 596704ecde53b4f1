// lockstep model: what was understood of a checkpoint.
#include <CLI/CLI.hpp>

#include "src/report/output.h"
#include "src/session/device.h"
#include "src/session/model_table.h"
#include "tools/options.h"

namespace lockstep {

int model_command(Args args) {
  CLI::App app{
      "Show what was understood of a checkpoint: its shape, its options, its weights, and how "
      "much\n"
      "of it this machine, or a device, could serve. A folder with only config.json is described "
      "as\n"
      "far as it goes.",
      "lockstep model"};
  std::string dir, format = "table", device = "cpu";
  app.add_option("DIR", dir, "checkpoint: config.json, *.safetensors")
      ->type_name("DIR")
      ->required();
  add_device_option(app, device);
  add_format_option(app, format);
  if (!parse(app, args,
             "  lockstep model Qwen3-0.6B\n"
             "  lockstep model Qwen3-0.6B --device cuda\n"
             "  lockstep model Qwen3-0.6B --format json\n"))
    return 0;
  print(text_of(describe_model(dir, open_device(device)), format));
  return 0;
}

}  // namespace lockstep
