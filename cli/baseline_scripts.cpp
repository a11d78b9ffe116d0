#include "baseline_scripts.hpp"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <span>
#include <system_error>

#include "batch.hpp"
#include "checkout.hpp"
#include "flashmoe/error.hpp"
#include "io/npy.hpp"

namespace flashmoe::cli {

namespace {

struct Known {
  const char* name;
  const char* script;
};
constexpr Known kKnown[] = {
    {"torch_nccl", "torch_nccl.py"}, {"flashinfer", "flashinfer_push.py"}, {"vllm_triton", "vllm_triton.py"}};

/// A folder for the inputs, gone with them.
class InputFolder {
 public:
  InputFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "flashmoe_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) {
      throw Error(
          fmt::format("a folder like {} must be made for the baselines' inputs, and cannot: set TMPDIR to one "
                      "with room",
                      name));
    }
    path_ = name;
  }
  ~InputFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  InputFolder(const InputFolder&) = delete;
  InputFolder& operator=(const InputFolder&) = delete;
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

void write_inputs(const InputFolder& folder, const std::string& files, const Batch& batch) {
  const std::int64_t tokens = batch.num_tokens();
  const std::vector<std::int64_t> routes{tokens, batch.problem.top_k};
  write_npy(folder / (files + ".x.npy"), NpyType::bits16, {tokens, batch.problem.hidden}, batch.x);
  write_npy(folder / (files + ".ids.npy"), NpyType::int32, routes, std::as_bytes(std::span(batch.routing.topk_ids)));
  write_npy(folder / (files + ".weights.npy"), NpyType::float32, routes,
            std::as_bytes(std::span(batch.routing.topk_weights)));
}

/// As bench/baselines/cases.py reads it.
nlohmann::json description_of(const Job& job, const BenchOptions& options, const std::string& files) {
  const Problem& problem = job.problem;
  return {{"model", job.layer_name},
          {"hidden", problem.hidden},
          {"intermediate", problem.intermediate},
          {"num_experts", problem.num_experts},
          {"top_k", problem.top_k},
          {"gated", problem.gated},
          {"activation", to_string(problem.activation)},
          {"swiglu_alpha", problem.swiglu_alpha},
          {"swiglu_limit", problem.swiglu_limit},
          {"dtype", to_string(problem.dtype)},
          {"biases", problem.up_bias || problem.down_bias},
          {"num_ranks", problem.num_ranks},
          {"tokens", job.tokens_per_rank},
          {"warm_up", options.warm_up},
          {"repeats", options.repeats},
          {"budget_ms", options.budget_ms},
          {"rest_ms", options.rest_ms},
          {"files", files}};
}

std::string last_line(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

std::string files_of(std::size_t index) { return fmt::format("case{}", index); }

}  // namespace

bool is_baseline_script(const std::string& name) {
  for (const Known& known : kKnown) {
    if (name == known.name) return true;
  }
  return false;
}

std::string baseline_script_names() {
  std::string names;
  for (const Known& known : kKnown) names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

BaselineScript::BaselineScript(std::string name) : name_(std::move(name)) {
  const std::optional<std::filesystem::path> checkout = find_checkout();
  if (!checkout) {
    throw InvalidArgument(
        fmt::format("baseline {} needs bench/baselines of a checkout, and the program lies in none: "
                    "run the one in a checkout's build folder, or name a file of its measurements",
                    name_));
  }
  for (const Known& known : kKnown) {
    if (name_ == known.name) script_ = *checkout / "bench/baselines" / known.script;
  }
  const std::filesystem::path own = *checkout / ".venv/torch/bin/python";
  python_ = access(own.c_str(), X_OK) == 0 ? own.string() : "python3";
}

std::vector<nlohmann::json> BaselineScript::time(std::vector<BenchCase>& cases, const BenchOptions& options) const {
  const InputFolder folder;
  nlohmann::json described = nlohmann::json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    described.push_back(description_of(cases[i].job, options, files_of(i)));
    if (cases[i].job.problem.dtype == DType::bf16) {
      write_inputs(folder, files_of(i), make_batch(cases[i].job, std::nullopt));
    }
  }
  std::ofstream(folder / "cases.json") << described.dump();

  const std::filesystem::path errors = folder / "errors";
  const int most_seconds = options.baseline_seconds;  // a peer that hangs must not hang the sweep
  const std::string command =
      fmt::format("timeout -k 10 {} {} -B {} {} 2>{}", most_seconds, shell_quoted(python_),
                  shell_quoted(script_.string()), shell_quoted(folder.path().string()), shell_quoted(errors.string()));
  nlohmann::json by_files = nlohmann::json::object();
  FILE* const output = popen(command.c_str(), "r");
  if (output == nullptr) throw Error("the system starts no more processes: end others, or leave --baselines out");
  std::string line;
  for (int c = std::fgetc(output); c != EOF; c = std::fgetc(output)) {
    if (c != '\n') {
      line += static_cast<char>(c);
      continue;
    }
    nlohmann::json answer = nlohmann::json::parse(line, nullptr, false);
    if (answer.is_object() && answer.contains("files")) by_files[answer["files"].get<std::string>()] = answer;
    line.clear();
  }
  const int status = pclose(output);

  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  const std::string silence = code == 124
                                  ? fmt::format("{} took more than {} s", name_, most_seconds)
                                  : fmt::format("{} gave no answer (exit code {}): {}", name_, code, last_line(errors));
  std::vector<nlohmann::json> answers;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const auto found = by_files.find(files_of(i));
    answers.push_back(found != by_files.end() ? *found : nlohmann::json{{"error", silence}});
    answers.back().erase("files");
    answers.back().erase("baseline");
  }
  return answers;
}

}  // namespace flashmoe::cli
