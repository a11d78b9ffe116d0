// The few functions of the CUDA driver that the runtime does not offer, found at run time: libcuda is never linked.
#pragma once

#include <cuda.h>

namespace flashmoe::cuda_backend {

/// The virtual memory management and the tensor maps of the driver; see its manual.
struct Driver {
  decltype(&cuGetErrorString) get_error_string;
  decltype(&cuMemGetAllocationGranularity) mem_get_allocation_granularity;
  decltype(&cuMemCreate) mem_create;
  decltype(&cuMemRelease) mem_release;
  decltype(&cuMemExportToShareableHandle) mem_export_to_shareable_handle;
  decltype(&cuMemImportFromShareableHandle) mem_import_from_shareable_handle;
  decltype(&cuMemAddressReserve) mem_address_reserve;
  decltype(&cuMemAddressFree) mem_address_free;
  decltype(&cuMemMap) mem_map;
  decltype(&cuMemUnmap) mem_unmap;
  decltype(&cuMemSetAccess) mem_set_access;
  decltype(&cuDeviceGetAttribute) device_get_attribute;
  decltype(&cuTensorMapEncodeTiled) tensor_map_encode_tiled;
};

/// Throws CudaError when the driver lacks one of them, or there is no driver.
const Driver& driver();

/// Throws CudaError when `result` is no success: what was called, and the driver's own words.
void check_driver(CUresult result, const char* what);

}  // namespace flashmoe::cuda_backend
