#include "cpu/gemm.hpp"

#include <cblas.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <new>
#include <string_view>
#include <vector>

#include "core/counter_rng.hpp"
#include "flashmoe/error.hpp"

namespace flashmoe::cpu {

namespace {

/// A build without threads hands its work buffers out without a lock, so calls from several threads corrupt each other.
bool one_at_a_time() {
  static const bool result = openblas_get_parallel() == 0 &&
                             std::string_view(openblas_get_config()).find("USE_LOCKING") == std::string_view::npos;
  return result;
}

/// OpenBLAS wants a buffer for every product that runs beside others, keeps it for later ones, and where there is no room for one
/// asks again for ever: this throws std::bad_alloc instead.
class Buffer {
 public:
  Buffer() : number_(++num_used_) {
    if (number_ <= num_made_) return;
    constexpr std::size_t kBytes = std::size_t{128} << 20;  // of its builds for x86-64
    void* const room = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
      --num_used_;
      throw std::bad_alloc();
    }
    munmap(room, kBytes);
    num_made_ = number_;
  }
  ~Buffer() { --num_used_; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

 private:
  static inline std::atomic<int> num_used_ = 0;
  static inline std::atomic<int> num_made_ = 0;
  int number_;
};

template <class Product>
void run(const Product& product) {
  static std::mutex mutex;
  std::unique_lock lock(mutex, std::defer_lock);
  if (one_at_a_time()) lock.lock();
  const Buffer buffer;
  product();
}

void gemm(int m, int n, int k, const float* a, const float* b, float* c) {
  run([&] { cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0f, a, k, b, k, 0.0f, c, n); });
}
void gemm(int m, int n, int k, const double* a, const double* b, double* c) {
  run([&] { cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, k, 1.0, a, k, b, k, 0.0, c, n); });
}

/// Groups of kRowGroup rows of `a` are given to BLAS as the dimension that lies along its vector registers, so that all of
/// them see the same instructions. Elsewhere they do not: the fp32 kernels for Haswell and Zen round columns 6..11 of
/// every 12 differently, and rows 8..23 of every 24. One call for all 32 rows of a tile would be 1.3 times as fast.
template <class T>
void multiply_in_groups(int m, int n, int k, const T* a, const T* b, T* c) {
  thread_local std::vector<T> transposed;  // [n][kRowGroup]
  transposed.resize(static_cast<std::size_t>(kRowGroup) * static_cast<std::size_t>(n));
  for (std::int64_t first = 0; first < m; first += kRowGroup) {
    const int rows = static_cast<int>(std::min<std::int64_t>(kRowGroup, m - first));
    gemm(n, rows, k, b, a + first * k, transposed.data());
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t column = 0; column < n; ++column) {
        c[(first + row) * n + column] = transposed[static_cast<std::size_t>(column * rows + row)];
      }
    }
  }
}

/// Whether equal rows give equal results wherever they lie, as they do on every CPU tried.
template <class T>
bool rows_are_alike() {
  constexpr int m = 32, n = 128, k = 200;
  const CounterRng rng(3, 4);
  std::vector<T> a(m * k), b(n * k), c(m * n);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(rng.uniform(i % k));
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(rng.uniform(k + i));
  multiply_in_groups(m, n, k, a.data(), b.data(), c.data());
  for (std::size_t i = n; i < c.size(); ++i) {
    if (c[i] != c[i % n]) return false;
  }
  return true;
}

template <class T>
void multiply_any(int m, int n, int k, const T* a, const T* b, T* c) {
  static const bool in_groups = rows_are_alike<T>();
  if (in_groups) {
    multiply_in_groups(m, n, k, a, b, c);
  } else {
    multiply_row_by_row(m, n, k, a, b, c);
  }
}

}  // namespace

void multiply_row_by_row(int m, int n, int k, const float* a, const float* b, float* c) {
  for (std::int64_t row = 0; row < m; ++row) gemm(1, n, k, a + row * k, b, c + row * n);
}
void multiply_row_by_row(int m, int n, int k, const double* a, const double* b, double* c) {
  for (std::int64_t row = 0; row < m; ++row) gemm(1, n, k, a + row * k, b, c + row * n);
}

void multiply(int m, int n, int k, const float* a, const float* b, float* c) { multiply_any(m, n, k, a, b, c); }
void multiply(int m, int n, int k, const double* a, const double* b, double* c) { multiply_any(m, n, k, a, b, c); }

namespace {

template <class T>
void check_product(double tolerance) {
  constexpr int m = 33, n = 65, k = 257;
  const CounterRng rng(1, 2);
  std::vector<T> a(m * k), b(n * k), c(m * n, static_cast<T>(NAN));
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<T>(2.0 * rng.uniform(i) - 1.0);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<T>(2.0 * rng.uniform(a.size() + i) - 1.0);
  multiply(m, n, k, a.data(), b.data(), c.data());
  for (int row = 0; row < m; ++row) {
    for (int column = 0; column < n; ++column) {
      double sum = 0.0;
      for (int i = 0; i < k; ++i) {
        sum += static_cast<double>(a[static_cast<std::size_t>(row * k + i)]) *
               static_cast<double>(b[static_cast<std::size_t>(column * k + i)]);
      }
      const double got = static_cast<double>(c[static_cast<std::size_t>(row * n + column)]);
      if (!(std::abs(got - sum) <= tolerance)) {
        throw Error(fmt::format("{} computes wrong results on this CPU (wanted {}, got {}): set OPENBLAS_CORETYPE to "
                                "an older core such as Haswell, or install a newer OpenBLAS",
                                openblas_get_config(), sum, got));
      }
    }
  }
}

}  // namespace

void check_blas() {
  static std::once_flag checked;
  std::call_once(checked, [] {
    openblas_set_num_threads(1);
    check_product<float>(1e-3);
    check_product<double>(1e-11);
  });
}

}  // namespace flashmoe::cpu
