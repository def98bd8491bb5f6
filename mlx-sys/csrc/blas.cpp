// Matrix products by OpenBLAS where there is one.
//
// The MLX of the Linux wheels is linked with the reference BLAS: a twentieth of OpenBLAS's speed
// for float32. MLX calls three functions of BLAS, cblas_{s,d,c}gemm. This library stands before
// MLX's BLAS in the order in which the dynamic linker looks symbols up, so MLX calls the three
// below. They load OpenBLAS at the first product (a program that computes nothing does not start
// its threads), and call the BLAS that MLX came with if there is none.
#ifdef __linux__
#include <dlfcn.h>

namespace {

using Sgemm = void(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
using Dgemm = void(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*, int);
using Cgemm = void(int, int, int, int, int, int, const void*, const void*, int, const void*, int, const void*, void*, int);

struct Blas {
  Sgemm* sgemm;
  Dgemm* dgemm;
  Cgemm* cgemm;
  void (*set_threads)(int);
  int (*threads)();
  const char* path; // null: the reference BLAS of MLX
};

const char* path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) ? info.dli_fname : nullptr;
}

template <class F>
bool find(F*& function, void* library, const char* name) {
  function = reinterpret_cast<F*>(dlsym(library, name));
  return function != nullptr;
}

struct Candidate {
  const char* library;
  const char *sgemm, *dgemm, *cgemm, *set_threads, *threads;
};

const Candidate candidates[] = {
    // The Python package scipy-openblas32, beside this library (found through its rpath).
    {"libscipy_openblas.so", "scipy_cblas_sgemm", "scipy_cblas_dgemm", "scipy_cblas_cgemm",
     "scipy_openblas_set_num_threads", "scipy_openblas_get_num_threads"},
    // The system's, with 32-bit integers.
    {"libopenblas.so.0", "cblas_sgemm", "cblas_dgemm", "cblas_cgemm",
     "openblas_set_num_threads", "openblas_get_num_threads"},
};

Blas load() {
  Blas blas{};
  for (const auto& c : candidates) {
    void* library = dlopen(c.library, RTLD_NOW | RTLD_LOCAL);
    if (library && find(blas.sgemm, library, c.sgemm) && find(blas.dgemm, library, c.dgemm) &&
        find(blas.cgemm, library, c.cgemm) && find(blas.set_threads, library, c.set_threads) &&
        find(blas.threads, library, c.threads)) {
      blas.path = path_of(reinterpret_cast<void*>(blas.sgemm));
      return blas;
    }
  }
  blas = {};
  find(blas.sgemm, RTLD_NEXT, "cblas_sgemm");
  find(blas.dgemm, RTLD_NEXT, "cblas_dgemm");
  find(blas.cgemm, RTLD_NEXT, "cblas_cgemm");
  return blas;
}

const Blas& blas() {
  static const Blas loaded = load();
  return loaded;
}

} // namespace

extern "C" {

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float* a,
                 int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  blas().sgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_dgemm(int order, int ta, int tb, int m, int n, int k, double alpha, const double* a,
                 int lda, const double* b, int ldb, double beta, double* c, int ldc) {
  blas().dgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void cblas_cgemm(int order, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                 int lda, const void* b, int ldb, const void* beta, void* c, int ldc) {
  blas().cgemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char* lathe_blas_library(void) { return blas().path; }

int lathe_blas_threads(void) { return blas().threads ? blas().threads() : 1; }

void lathe_blas_set_threads(int threads) {
  if (blas().set_threads) blas().set_threads(threads);
}

} // extern "C"

#else // macOS: MLX calls Accelerate.
extern "C" {
const char* lathe_blas_library(void) { return nullptr; }
int lathe_blas_threads(void) { return 1; }
void lathe_blas_set_threads(int) {}
}
#endif
