#include "flashmoe/group.hpp"

#include "api/group_state.hpp"

namespace flashmoe {

Group Group::local(int num_ranks, const GroupOptions& options) {
  return Group(std::make_shared<GroupState>(num_ranks, options));
}

int Group::num_ranks() const { return state_->num_ranks(); }
const GroupOptions& Group::options() const { return state_->options(); }

}  // namespace flashmoe
