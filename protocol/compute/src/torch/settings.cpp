// What libtorch has and `tch` has no call for: the settings that make a leaf repeat itself, and which library this is.

#include <cstdlib>
#include <exception>
#include <string>

#include <dlfcn.h>

#include <ATen/Context.h>
#include <ATen/Version.h>

namespace {

void settle(bool tf32) {
    at::Context &context = at::globalContext();
    context.setDeterministicAlgorithms(true, false);
    // Everything is written before it is read.
    context.setDeterministicFillUninitializedMemory(false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    context.setFloat32MatmulPrecision(tf32 ? "high" : "highest");
    // Never in bf16, in however many pieces along their depth: plain cuBLAS refuses to go without pieces, and with its
    // workspace fixed it cuts the same sum the same way each time.
    context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false, /*allow_splitk=*/true);
    context.setFlushDenormal(false);
}

std::string load_cuda() {
    // Without it cuBLAS may choose another order of sums when it is called again.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    Dl_info here;
    if (dladdr(reinterpret_cast<void *>(&at::show_config), &here) == 0) {
        return "it is not known where libtorch lies";
    }
    std::string path = here.dli_fname;
    path = path.substr(0, path.rfind('/') + 1) + "libtorch_cuda.so";
    return dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr ? "" : dlerror();
}

} // namespace

// Loads the kernels for CUDA that lie beside the libtorch in use, once; they register themselves. Says why it cannot, or
// nothing. The string stays. libtorch looks for such kernels once: this comes before any other call of it.
extern "C" const char *muster_torch_load_cuda() {
    static const std::string reason = load_cuda();
    return reason.c_str();
}

// What this libtorch says about itself. The string stays.
extern "C" const char *muster_torch_configuration() {
    static const std::string answer = at::show_config();
    return answer.c_str();
}

// Only kernels that repeat their bits; products of f32 in f32, or in TF32 where the processor has it; sums of products of
// bf16 in f32; subnormals kept. Says why it cannot, or nothing; the string stays until this thread's next call. Nothing is
// thrown into Rust: while a process ends, libtorch's settings are gone before the threads that compute with it.
extern "C" const char *muster_torch_settle(bool tf32) {
    static thread_local std::string reason;
    reason.clear();
    try {
        settle(tf32);
    } catch (const std::exception &error) {
        reason = std::string("libtorch cannot be settled: ") + error.what();
    }
    return reason.c_str();
}
