#include "cuda/driver.hpp"

#include <fmt/format.h>

#include "cuda/check.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

namespace {

/// All of them are there since CUDA 12.0, and unchanged.
constexpr unsigned kVersion = 12000;

template <class Function>
void find(Function& function, const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  check(cudaGetDriverEntryPointByVersion(name, &address, kVersion, cudaEnableDefault, &found),
        "cudaGetDriverEntryPointByVersion");
  if (found != cudaDriverEntryPointSuccess || address == nullptr) {
    throw CudaError(fmt::format("the CUDA driver has no {}: update the NVIDIA driver", name));
  }
  function = reinterpret_cast<Function>(address);
}

Driver load() {
  Driver driver{};
  find(driver.get_error_string, "cuGetErrorString");
  find(driver.mem_get_allocation_granularity, "cuMemGetAllocationGranularity");
  find(driver.mem_create, "cuMemCreate");
  find(driver.mem_release, "cuMemRelease");
  find(driver.mem_export_to_shareable_handle, "cuMemExportToShareableHandle");
  find(driver.mem_import_from_shareable_handle, "cuMemImportFromShareableHandle");
  find(driver.mem_address_reserve, "cuMemAddressReserve");
  find(driver.mem_address_free, "cuMemAddressFree");
  find(driver.mem_map, "cuMemMap");
  find(driver.mem_unmap, "cuMemUnmap");
  find(driver.mem_set_access, "cuMemSetAccess");
  find(driver.device_get_attribute, "cuDeviceGetAttribute");
  find(driver.tensor_map_encode_tiled, "cuTensorMapEncodeTiled");
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver loaded = load();
  return loaded;
}

void check_driver(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().get_error_string(result, &text);
  throw CudaError(fmt::format("{} failed: {} ({})", what, text != nullptr ? text : "unknown error", static_cast<int>(result)));
}

}  // namespace flashmoe::cuda_backend
