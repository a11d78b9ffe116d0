#include "gather.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include "fabric/unique_fd.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cli {

namespace {

/// pread() or pwrite() of all bytes, whatever one call takes.
template <class Transfer, class Bytes>
void transfer_all(const Transfer& transfer, int fd, Bytes* bytes, std::size_t num_bytes) {
  for (std::size_t done = 0; done < num_bytes;) {
    const ssize_t count = transfer(fd, bytes + done, num_bytes - done, static_cast<off_t>(done));
    if (count <= 0) throw Error("the results of all ranks do not fit in memory: use fewer tokens, or leave --output out");
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace

void gather(fabric::Bootstrap& meeting, std::vector<CallStats>& stats, std::vector<Deviation>& deviations) {
  struct Part {
    CallStats stats;
    Deviation deviation;
  };
  const auto own = static_cast<std::size_t>(meeting.rank());
  const std::vector<Part> parts = meeting.allgather_values(Part{stats[own], deviations[own]});
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    stats[rank] = parts[rank].stats;
    deviations[rank] = parts[rank].deviation;
  }
}

void gather_results(fabric::Bootstrap& meeting, Batch& batch) {
  const auto bytes_of = [&](int rank) {
    return static_cast<std::size_t>(batch.num_tokens(rank) * batch.problem.hidden) * dtype_bytes(batch.problem.dtype);
  };
  const fabric::UniqueFd own(memfd_create("flashmoe results", MFD_CLOEXEC));
  if (!own) throw Error("no file in memory can be made for the results: raise the limit of open files (ulimit -n)");
  const Rows rows = batch.y_of(meeting.rank());
  transfer_all(pwrite, own.get(), static_cast<const std::byte*>(rows.data), bytes_of(meeting.rank()));
  const std::vector<fabric::UniqueFd> files = meeting.exchange_fds(own.get());
  if (meeting.rank() != 0) return;
  for (int rank = 1; rank < meeting.num_ranks(); ++rank) {
    transfer_all(pread, files[static_cast<std::size_t>(rank)].get(), static_cast<std::byte*>(batch.y_of(rank).data),
                 bytes_of(rank));
  }
}

}  // namespace flashmoe::cli
