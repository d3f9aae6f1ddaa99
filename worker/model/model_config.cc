#include "worker/model/model_config.h"

#include <algorithm>

namespace slackline {
namespace {

constexpr int kHiddenLayersMax = 64;
constexpr int kHiddenWidthMax = 1 << 16;

void CheckMlp(const config::Mlp& mlp, const ConfigProblems& problems) {
  if (mlp.hidden_size() == 0) {
    problems.Add("hidden",
                 "is missing; at least one layer is required, as in hidden: "
                 "512; a net without hidden layers is softmax {}");
  }
  if (mlp.hidden_size() > kHiddenLayersMax) {
    problems.Add("hidden", absl::StrCat("there are ", mlp.hidden_size(),
                                        " layers; at most ", kHiddenLayersMax,
                                        " are allowed"));
  }
  for (int i = 0; i < std::min(mlp.hidden_size(), kHiddenLayersMax); ++i) {
    problems.Range(absl::StrCat("hidden[", i, "]"), mlp.hidden(i), 1,
                   kHiddenWidthMax);
  }
}

void CheckLenetFeatures(absl::string_view field, int64_t features,
                        const ConfigProblems& problems) {
  constexpr int64_t kPixels = kLenetSide * kLenetSide;
  if (features == kPixels) return;
  problems.Add(field,
               absl::StrCat("value is ", features, "; model.lenet reads ",
                            kLenetSide, "x", kLenetSide, " pixels, ", kPixels,
                            " is required, or use another model"));
}

}  // namespace

void CheckModel(const config::Model& model, const ConfigProblems& problems) {
  switch (model.kind_case()) {
    case config::Model::kSoftmax:
    case config::Model::kLenet:
      break;
    case config::Model::kMlp:
      CheckMlp(model.mlp(), problems.In("mlp"));
      break;
    case config::Model::kLogistic:
      problems.AtLeastZero("logistic.l2", model.logistic().l2());
      break;
    case config::Model::kLinear:
      problems.AtLeastZero("linear.l2", model.linear().l2());
      break;
    case config::Model::KIND_NOT_SET:
      problems.Add(
          "",
          "is missing; one of softmax, mlp, lenet, logistic and linear "
          "is required, as in model { softmax {} }");
  }
}

void CheckModelFitsData(const config::Model& model, const config::Data& data,
                        const ConfigProblems& problems) {
  if (model.has_logistic()) {
    if (data.has_teacher_student() && data.teacher_student().classes() != 2) {
      problems.Add("data.teacher_student.classes",
                   absl::StrCat("value is ", data.teacher_student().classes(),
                                "; model.logistic separates two classes, write "
                                "2 or use softmax {}"));
    }
  }
  if (model.has_linear() && data.has_teacher_student()) {
    problems.Add("model.linear",
                 "predicts real numbers, data.teacher_student has classes; use "
                 "softmax {}");
  }
  if (model.has_lenet()) {
    if (data.libsvm().has_features()) {
      CheckLenetFeatures("data.libsvm.features", data.libsvm().features(),
                         problems);
    }
    if (data.has_teacher_student()) {
      CheckLenetFeatures("data.teacher_student.features",
                         data.teacher_student().features(), problems);
    }
  }
}

absl::Status CheckModelTakes(const config::Model& model, const DataShape& shape,
                             absl::string_view source) {
  constexpr ImageShape kLenetImage = {
      .channels = 1, .rows = kLenetSide, .columns = kLenetSide};
  if (model.has_lenet() &&
      (shape.image.is_image() ? shape.image != kLenetImage
                              : shape.features != kLenetSide * kLenetSide)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.lenet takes images of 1x28x28; ", source, " has ",
        InputText(shape), "; use mlp {} or softmax {}, which take any inputs"));
  }
  if (model.has_logistic() && shape.classes != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.logistic separates two classes; ", source, " has ",
                     shape.classes, "; use softmax {}"));
  }
  return absl::OkStatus();
}

}  // namespace slackline
