// Operations of the graph that a function of lathe's computes, on the CPU.
#include <memory>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/c/error.h"
#include "mlx/c/private/mlx.h"
#include "mlx/primitives.h"

extern "C" {
using lathe_host_run = void(void* data, const void* const* inputs, const int64_t* const* strides, void* const* outs);
using lathe_host_drop = void(void* data);
}

namespace {

struct HostFunction {
  lathe_host_run* run;
  void* data;
  lathe_host_drop* drop;
  ~HostFunction() { drop(data); }
};

// What is dispatched: addresses, and strides one input after the other.
struct Call {
  std::shared_ptr<HostFunction> function;
  std::vector<const void*> from;
  std::vector<int64_t> strides;
  std::vector<size_t> axes;
  std::vector<void*> to;

  void operator()() {
    std::vector<const int64_t*> steps;
    size_t at = 0;
    for (size_t count : axes) {
      steps.push_back(strides.data() + at);
      at += count;
    }
    function->run(function->data, from.data(), steps.data(), to.data());
  }
};

class Host : public mlx::core::Primitive {
 public:
  Host(mlx::core::Stream stream, std::shared_ptr<HostFunction> function)
      : Primitive(stream), function_(std::move(function)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outs) override {
    Call call{function_, {}, {}, {}, {}};
    for (const auto& input : inputs) {
      call.from.push_back(input.data<char>());
      call.strides.insert(call.strides.end(), input.strides().begin(), input.strides().end());
      call.axes.push_back(input.ndim());
    }
    for (auto& out : outs) {
      out.set_data(mlx::core::allocator::malloc(out.nbytes()));
      call.to.push_back(out.data<char>());
    }
    // MLX keeps the buffers of inputs and outputs until what is dispatched has run.
    mlx::core::cpu::get_command_encoder(stream()).dispatch(std::move(call));
  }

  void eval_gpu(const std::vector<mlx::core::array>&, std::vector<mlx::core::array>&) override {
    throw std::runtime_error("a function of the CPU cannot run on a GPU");
  }

  const char* name() const override { return "Host"; }

 private:
  std::shared_ptr<HostFunction> function_;
};

} // namespace

/// The arrays that `run` makes of the inputs, all of one dtype; `shapes` are one after the other,
/// of `axes` numbers each. `data` is dropped when nothing needs it any more, whether this succeeds
/// or not.
extern "C" int lathe_host_operation(mlx_array* outs, size_t out_count, const int* shapes,
                                    const size_t* axes, mlx_dtype dtype, const mlx_array* inputs,
                                    size_t count, lathe_host_run* run, void* data,
                                    lathe_host_drop* drop, mlx_stream stream) {
  try {
    std::shared_ptr<HostFunction> function(new HostFunction{run, data, drop});
    auto on = mlx_stream_get_(stream);
    std::vector<mlx::core::array> from;
    for (size_t i = 0; i < count; i++) {
      from.push_back(mlx_array_get_(inputs[i]));
    }
    std::vector<mlx::core::Shape> made;
    for (size_t i = 0; i < out_count; i++) {
      made.emplace_back(shapes, shapes + axes[i]);
      shapes += axes[i];
    }
    std::vector<mlx::core::Dtype> dtypes(out_count, mlx_dtype_to_cpp(dtype));
    auto arrays = mlx::core::array::make_arrays(
        std::move(made), dtypes, std::make_shared<Host>(on, std::move(function)), from);
    for (size_t i = 0; i < out_count; i++) {
      mlx_array_set_(outs[i], std::move(arrays[i]));
    }
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}
