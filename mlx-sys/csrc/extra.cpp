// What lathe needs of MLX beyond mlx-c.
#include <dlfcn.h>

#include "mlx/version.h"

/// The file that the MLX in use was loaded from.
extern "C" const char* lathe_mlx_library(void) {
  Dl_info info{};
  auto function = reinterpret_cast<void*>(&mlx::core::version);
  return dladdr(function, &info) ? info.dli_fname : nullptr;
}
