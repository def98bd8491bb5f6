// An operation of the graph that a function of lathe's computes, on the CPU.
#include <memory>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"
#include "mlx/ops.h"
#include "mlx/primitives.h"

extern "C" {
using lathe_host_run = void(void* data, const void* const* inputs, const int64_t* const* strides, void* out);
using lathe_host_drop = void(void* data);
}

namespace {

struct HostFunction {
  lathe_host_run* run;
  void* data;
  lathe_host_drop* drop;
  ~HostFunction() { drop(data); }
};

class Host : public mlx::core::UnaryPrimitive {
 public:
  Host(mlx::core::Stream stream, std::shared_ptr<HostFunction> function)
      : UnaryPrimitive(stream), function_(std::move(function)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs, mlx::core::array& out) override {
    out.set_data(mlx::core::allocator::malloc(out.nbytes()));
    std::vector<const void*> from;
    std::vector<mlx::core::Strides> strides;
    for (const auto& input : inputs) {
      from.push_back(input.data<char>());
      strides.push_back(input.strides());
    }
    // MLX keeps the buffers of inputs and output until what is dispatched has run.
    auto& encoder = mlx::core::cpu::get_command_encoder(stream());
    encoder.dispatch([function = function_, from = std::move(from), strides = std::move(strides),
                      to = out.data<char>()] {
      std::vector<const int64_t*> steps;
      for (const auto& each : strides) {
        steps.push_back(each.data());
      }
      function->run(function->data, from.data(), steps.data(), to);
    });
  }

  void eval_gpu(const std::vector<mlx::core::array>&, mlx::core::array&) override {
    throw std::runtime_error("a function of the CPU cannot run on a GPU");
  }

  const char* name() const override { return "Host"; }

 private:
  std::shared_ptr<HostFunction> function_;
};

mlx::core::array row_major(const mlx::core::array& x, mlx::core::Stream stream) {
  bool ready = x.is_available() && x.flags().row_contiguous;
  return ready ? x : mlx::core::contiguous(x, false, stream);
}

} // namespace

/// `out` is what `run` makes of the inputs, each given to it row-major unless `views`. `data` is dropped when
/// nothing needs it any more, whether this succeeds or not.
extern "C" int lathe_host_operation(mlx_array* out, const mlx_array* inputs, size_t count,
                                    bool views, const int* shape, size_t axes, mlx_dtype dtype,
                                    lathe_host_run* run, void* data, lathe_host_drop* drop,
                                    mlx_stream stream) {
  try {
    std::shared_ptr<HostFunction> function(new HostFunction{run, data, drop});
    auto on = mlx_stream_get_(stream);
    std::vector<mlx::core::array> from;
    for (size_t i = 0; i < count; i++) {
      auto& input = mlx_array_get_(inputs[i]);
      from.push_back(views ? input : row_major(input, on));
    }
    mlx_array_set_(*out, mlx::core::array(mlx::core::Shape(shape, shape + axes),
                                          mlx_dtype_to_cpp(dtype),
                                          std::make_shared<Host>(on, function), std::move(from)));
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}
