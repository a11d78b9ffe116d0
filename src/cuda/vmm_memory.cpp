#include "cuda/vmm_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "cuda/driver.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cuda_backend {

namespace {

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

}  // namespace

/// A reference to memory; a mapping holds one of its own.
class VmmMemory::Handle {
 public:
  explicit Handle(CUmemGenericAllocationHandle handle) : handle_(handle) {}
  ~Handle() { driver().mem_release(handle_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  CUmemGenericAllocationHandle get() const { return handle_; }

 private:
  CUmemGenericAllocationHandle handle_;
};

std::size_t VmmMemory::rounded_bytes(int device, std::size_t bytes) {
  for (const CUdevice_attribute attribute : {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                             CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED}) {
    int supported = 0;
    check_driver(driver().device_get_attribute(&supported, attribute, device), "cuDeviceGetAttribute");
    if (supported == 0) {
      throw CudaError(fmt::format("GPU {} cannot share memory between processes: run the ranks as threads of one process",
                                  device));
    }
  }
  const CUmemAllocationProp properties = properties_of(device);
  std::size_t granularity = 0;
  check_driver(driver().mem_get_allocation_granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
               "cuMemGetAllocationGranularity");
  return (bytes + granularity - 1) / granularity * granularity;
}

VmmMemory VmmMemory::create(int device, std::size_t bytes, fabric::UniqueFd& shared) {
  const CUmemAllocationProp properties = properties_of(device);
  CUmemGenericAllocationHandle made = 0;
  const CUresult result = driver().mem_create(&made, bytes, &properties, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    throw CudaError(fmt::format("GPU {} has no {} bytes left: use fewer tokens or waves", device, bytes));
  }
  check_driver(result, "cuMemCreate");
  const Handle handle(made);
  int fd = -1;
  check_driver(driver().mem_export_to_shareable_handle(&fd, handle.get(), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
               "cuMemExportToShareableHandle");
  shared.reset(fd);
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return map(device, bytes, handle);
}

VmmMemory VmmMemory::import(int device, std::size_t bytes, const fabric::UniqueFd& shared) {
  CUmemGenericAllocationHandle imported = 0;
  auto* fd = reinterpret_cast<void*>(static_cast<std::intptr_t>(shared.get()));
  check_driver(driver().mem_import_from_shareable_handle(&imported, fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
               "cuMemImportFromShareableHandle");
  return map(device, bytes, Handle(imported));
}

VmmMemory VmmMemory::map(int device, std::size_t bytes, const Handle& handle) {
  VmmMemory memory;
  CUdeviceptr address = 0;
  check_driver(driver().mem_address_reserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
  memory.data_ = reinterpret_cast<char*>(address);
  memory.bytes_ = bytes;
  check_driver(driver().mem_map(address, bytes, 0, handle.get(), 0), "cuMemMap");
  memory.mapped_ = true;
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const CUresult result = driver().mem_set_access(address, bytes, &access, 1);
  if (result == CUDA_ERROR_INVALID_DEVICE || result == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED) {
    throw CudaError(fmt::format("GPU {} cannot reach that memory: use GPUs joined by NVLink (nvidia-smi topo -m shows "
                                "which)", device));
  }
  check_driver(result, "cuMemSetAccess");
  return memory;
}

VmmMemory::~VmmMemory() {
  const auto address = reinterpret_cast<CUdeviceptr>(data_);
  if (mapped_) driver().mem_unmap(address, bytes_);
  if (data_ != nullptr) driver().mem_address_free(address, bytes_);
}

VmmMemory::VmmMemory(VmmMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), mapped_(std::exchange(other.mapped_, false)) {}

VmmMemory& VmmMemory::operator=(VmmMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace flashmoe::cuda_backend
