// Errors and versions of the C interface.
#include <cstdio>
#include <exception>
#include <new>
#include <tuple>

#include "api/c_abi.hpp"
#include "flashmoe/version.hpp"

namespace flashmoe {

namespace {

// Fixed memory: telling of an error must not fail.
thread_local char last_error[2048] = "";

flashmoe_status keep(flashmoe_status status, const char* message) noexcept {
  std::snprintf(last_error, sizeof(last_error), "%s", message);
  return status;
}

}  // namespace

flashmoe_status keep_current_exception() noexcept {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    return keep(FLASHMOE_INVALID_ARGUMENT, error.what());
  } catch (const CudaError& error) {
    return keep(FLASHMOE_CUDA_ERROR, error.what());
  } catch (const FabricError& error) {
    return keep(FLASHMOE_FABRIC_ERROR, error.what());
  } catch (const Timeout& error) {
    return keep(FLASHMOE_TIMEOUT, error.what());
  } catch (const std::bad_alloc&) {
    return keep(FLASHMOE_OUT_OF_MEMORY, "no memory is left for this call: free some, or use a smaller problem");
  } catch (const std::exception& error) {
    return keep(FLASHMOE_ERROR, error.what());
  } catch (...) {
    return keep(FLASHMOE_ERROR, "an exception of an unknown type was thrown");
  }
}

}  // namespace flashmoe

extern "C" {

const char* flashmoe_last_error(void) { return flashmoe::last_error; }

const char* flashmoe_status_name(flashmoe_status status) {
  switch (status) {
    case FLASHMOE_OK: return "ok";
    case FLASHMOE_ERROR: return "error";
    case FLASHMOE_INVALID_ARGUMENT: return "invalid argument";
    case FLASHMOE_CUDA_ERROR: return "CUDA error";
    case FLASHMOE_FABRIC_ERROR: return "fabric error";
    case FLASHMOE_TIMEOUT: return "timeout";
    case FLASHMOE_OUT_OF_MEMORY: return "out of memory";
  }
  return "unknown status";
}

const char* flashmoe_version(void) { return flashmoe::version(); }

flashmoe_status flashmoe_check_version(int major, int minor, int patch) {
  return flashmoe::guarded([&] {
    const bool same_series = major == FLASHMOE_VERSION_MAJOR && (major > 0 || minor == FLASHMOE_VERSION_MINOR);
    const bool as_new = std::tuple(minor, patch) <= std::tuple(FLASHMOE_VERSION_MINOR, FLASHMOE_VERSION_PATCH);
    if (same_series && as_new) return;
    throw flashmoe::InvalidArgument(fmt::format("this library is version {}, but the program was built for {}.{}.{}: build it "
                                                "again with this library's header", flashmoe::version(), major, minor,
                                                patch));
  });
}

}  // extern "C"
