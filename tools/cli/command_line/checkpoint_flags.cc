#include "tools/cli/command_line/checkpoint_flags.h"

#include <memory>

#include "tools/cli/checkpoint/export_command.h"
#include "tools/cli/checkpoint/import_command.h"

namespace slackline {

void AddCheckpointCommands(CLI::App* app, int* exit_code) {
  const auto to_file = std::make_shared<ExportOptions>();
  CLI::App* const export_command = app->add_subcommand(
      "export",
      "Writes the parameters of a checkpoint to a safetensors file, as the "
      "model file of a run has them: each table under its name, with its "
      "shape. Checks all of the checkpoint first. Overwrites nothing.");
  export_command
      ->add_option("CHECKPOINT", to_file->checkpoint,
                   "Its folder (step-*), or the folder of a run or of several "
                   "checkpoints, of which the newest is taken that is whole")
      ->required();
  export_command
      ->add_option("FILE", to_file->file,
                   "The file to write, as in model.safetensors")
      ->required();
  export_command->add_flag(
      "--best", to_file->best,
      "Not the newest but the best one, of a job with checkpoint { best_by: "
      "... }");
  export_command->add_flag("--json", to_file->json,
                           "What was written, as JSON");
  export_command->footer(
      "Examples:\n"
      "  slackline export runs/digits model.safetensors\n"
      "  slackline export runs/digits best.safetensors --best\n"
      "  slackline export runs/digits/checkpoints/step-00001200 "
      "model.safetensors");
  export_command->callback([=] { *exit_code = ExportCheckpoint(*to_file); });

  const auto from_file = std::make_shared<ImportOptions>();
  CLI::App* const import_command = app->add_subcommand(
      "import",
      "Makes a checkpoint of step 0 from a safetensors file, for a job to "
      "begin with its parameters: fine-tuning. Names and shapes have to be "
      "those of the job's tables; optimizers begin anew.");
  import_command
      ->add_option("FILE", from_file->file,
                   "A safetensors file, as slackline and PyTorch write them; "
                   "F16, BF16 and F64 become float32")
      ->required();
  import_command
      ->add_option("--out", from_file->out,
                   "The checkpoint goes into the folder step-00000000 in this "
                   "one, which is made if need be and has to be empty")
      ->required();
  import_command
      ->add_option("--only", from_file->only,
                   "PREFIX: only tensors whose names begin so; may be repeated")
      ->allow_extra_args(false);
  import_command
      ->add_option("--skip", from_file->skip,
                   "NAME of a tensor to leave out, such as a counter of "
                   "BatchNorm, whose integers no table can have; may be "
                   "repeated")
      ->allow_extra_args(false);
  import_command->add_flag("--json", from_file->json,
                           "What was written, as JSON");
  import_command->footer(
      "Examples:\n"
      "  slackline import model.safetensors --out start\n"
      "  slackline run examples/mnist_mlp.textproto --resume start\n"
      "  slackline import resnet.safetensors --out start "
      "--skip bn1.num_batches_tracked");
  import_command->callback([=] { *exit_code = ImportCheckpoint(*from_file); });
}

}  // namespace slackline
