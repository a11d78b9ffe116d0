#include "flashmoe/group.hpp"

#include "api/local_group.hpp"
#include "api/process_group.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe {

Group Group::local(int num_ranks, const GroupOptions& options) {
  return Group(std::make_shared<LocalGroup>(num_ranks, options));
}

Group Group::join(const ProcessRank& place, const GroupOptions& options) {
  if (options.backend == BackendKind::cpu) {
    throw InvalidArgument("a group of processes needs backend cuda, got cpu: run the ranks as threads of one process "
                          "(Group::local)");
  }
  require_backend(options.backend);
  return Group(std::make_shared<ProcessGroup>(place, options, [&] { return make_backend(options, place.device); }));
}

int Group::num_ranks() const { return state_->num_ranks(); }
const GroupOptions& Group::options() const { return state_->options(); }

}  // namespace flashmoe
