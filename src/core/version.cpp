#include "flashmoe/version.hpp"

namespace flashmoe {

const char* version() noexcept { return FLASHMOE_VERSION; }

}  // namespace flashmoe
