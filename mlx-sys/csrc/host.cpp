// Operations of the graph that a function of lathe's computes, on the CPU.
#include <cstring>
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
  struct Copy {
    const void* from;
    void* to;
    size_t bytes;
  };
  std::shared_ptr<HostFunction> function;
  std::vector<Copy> copies;
  std::vector<const void*> from;
  std::vector<int64_t> strides;
  std::vector<size_t> axes;
  std::vector<void*> to;

  void operator()() {
    for (const auto& copy : copies) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
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
  Host(mlx::core::Stream stream, std::shared_ptr<HostFunction> function, std::vector<int> over)
      : Primitive(stream), function_(std::move(function)), over_(std::move(over)) {}

  void eval_cpu(const std::vector<mlx::core::array>& inputs,
                std::vector<mlx::core::array>& outs) override {
    std::vector<const mlx::core::array*> from;
    for (const auto& input : inputs) {
      from.push_back(&input);
    }
    // MLX keeps the buffers of inputs and outputs until what is dispatched has run. Each result has
    // handles of all inputs until it has been evaluated.
    mlx::core::cpu::get_command_encoder(stream()).dispatch(prepare(from, outs, outs.size()));
  }

  // The results, of inputs that are there, each of which its owner has one handle of.
  void run_now(const std::vector<const mlx::core::array*>& inputs,
               std::vector<mlx::core::array>& outs) {
    prepare(inputs, outs, 1)();
    for (auto& out : outs) {
      out.set_status(mlx::core::array::Status::available);
    }
  }

  void eval_gpu(const std::vector<mlx::core::array>&, std::vector<mlx::core::array>&) override {
    throw std::runtime_error("a function of the CPU cannot run on a GPU");
  }

  const char* name() const override { return "Host"; }

 private:
  // The call, with room for its results. An input that only what is about to run holds has so many
  // `handles`.
  Call prepare(const std::vector<const mlx::core::array*>& inputs,
               std::vector<mlx::core::array>& outs, size_t handles) {
    Call call{function_, {}, {}, {}, {}, {}};
    for (const auto* input : inputs) {
      call.from.push_back(input->data<char>());
      call.strides.insert(call.strides.end(), input->strides().begin(), input->strides().end());
      call.axes.push_back(input->ndim());
    }
    for (size_t i = 0; i < outs.size(); i++) {
      make_room(outs[i], over_[i] < 0 ? nullptr : inputs[over_[i]], handles, call);
      call.to.push_back(outs[i].data<char>());
    }
    return call;
  }

  // Of a result that begins as one of the inputs: that input's own memory when nothing else holds
  // it, else a copy.
  static void make_room(mlx::core::array& out, const mlx::core::array* begins_as, size_t handles,
                        Call& call) {
    if (begins_as && !begins_as->flags().row_contiguous) {
      throw std::runtime_error("a result cannot begin as an array that is not row-major");
    }
    if (begins_as && holders(*begins_as) == handles &&
        begins_as->data_shared_ptr().use_count() == 1 &&
        begins_as->data_shared_ptr()->is_owned()) {
      out.copy_shared_buffer(*begins_as);
      return;
    }
    out.set_data(mlx::core::allocator::malloc(out.nbytes()));
    if (begins_as) {
      call.copies.push_back({begins_as->data<char>(), out.data<char>(), out.nbytes()});
    }
  }

  // How many handles of an array there are. MLX's own is_donatable wants one.
  static size_t holders(const mlx::core::array& array) {
    using Handle = std::shared_ptr<void>;
    static_assert(sizeof(mlx::core::array) == sizeof(Handle),
                  "an array is a handle and nothing else");
    return reinterpret_cast<const Handle&>(array).use_count();
  }

  std::shared_ptr<HostFunction> function_;
  std::vector<int> over_;
};

} // namespace

/// The arrays that `run` makes of the inputs, all of one dtype, at once where the inputs have been
/// evaluated; `shapes` are one after the other,
/// of `axes` numbers each. Result i begins as the input `over[i]`, row-major and of its shape and
/// dtype, unless that is negative. `data` is dropped when nothing needs it any more, whether this
/// succeeds or not.
extern "C" int lathe_host_operation(mlx_array* outs, size_t out_count, const int* shapes,
                                    const size_t* axes, const int* over, mlx_dtype dtype,
                                    const mlx_array* inputs, size_t count, lathe_host_run* run,
                                    void* data, lathe_host_drop* drop, mlx_stream stream) {
  try {
    std::shared_ptr<HostFunction> function(new HostFunction{run, data, drop});
    auto on = mlx_stream_get_(stream);
    auto host =
        std::make_shared<Host>(on, std::move(function), std::vector<int>(over, over + out_count));
    // Where all inputs are there, nothing is gained by waiting.
    bool now = on.device == mlx::core::Device::cpu;
    std::vector<const mlx::core::array*> given;
    for (size_t i = 0; i < count; i++) {
      const auto& input = mlx_array_get_(inputs[i]);
      now = now && input.is_available() && !input.is_tracer();
      given.push_back(&input);
    }
    std::vector<mlx::core::array> arrays;
    if (now) {
      for (size_t i = 0; i < out_count; i++) {
        mlx::core::Shape made(shapes, shapes + axes[i]);
        arrays.emplace_back(std::move(made), mlx_dtype_to_cpp(dtype), nullptr,
                            std::vector<mlx::core::array>{});
        shapes += axes[i];
      }
      host->run_now(given, arrays);
    } else {
      std::vector<mlx::core::array> from;
      for (const auto* input : given) {
        from.push_back(*input);
      }
      std::vector<mlx::core::Shape> made;
      for (size_t i = 0; i < out_count; i++) {
        made.emplace_back(shapes, shapes + axes[i]);
        shapes += axes[i];
      }
      std::vector<mlx::core::Dtype> dtypes(out_count, mlx_dtype_to_cpp(dtype));
      arrays = mlx::core::array::make_arrays(std::move(made), dtypes, std::move(host), from);
    }
    for (size_t i = 0; i < out_count; i++) {
      mlx_array_set_(outs[i], std::move(arrays[i]));
    }
  } catch (std::exception& e) {
    mlx_error(e.what());
    return 1;
  }
  return 0;
}
