// What a graphics processor does beside its computations: copies to memory, and how much memory of its own is free. Only
// what c10 has for every kind of device: the kernels for CUDA are loaded at run time, and nothing here is linked with them.

#include <cstdint>
#include <exception>
#include <string>

#include <ATen/ATen.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace {

thread_local std::string failure;

// Nothing is thrown into Rust.
template <typename Work> bool tried(Work work) {
    try {
        work();
        return true;
    } catch (const std::exception &error) {
        failure = error.what();
    } catch (...) {
        failure = "an exception without words";
    }
    return false;
}

} // namespace

// What the last failure of this thread was. The string stays until its next one.
extern "C" const char *muster_torch_failure() { return failure.c_str(); }

// Moves a vector to memory that graphics processors read and write by themselves; whether it went well.
extern "C" bool muster_torch_pin(at::Tensor *vector) {
    return tried([&] { *vector = vector->pin_memory(); });
}

// Begins to copy a vector from a graphics processor to memory once it has done what was asked of it so far, beside what
// is asked of it later. Both vectors stay, and neither is touched, until the copy is waited for. Null after a failure.
extern "C" void *muster_torch_download(at::Tensor *to, const at::Tensor *from) {
    c10::Event *copied = nullptr;
    const bool done = tried([&] {
        const c10::Device device = from->device();
        const c10::impl::VirtualGuardImpl processor(device.type());
        const c10::Stream computing = processor.getStream(device);
        const c10::Stream copying = processor.getStreamFromGlobalPool(device);
        c10::Event computed(device.type());
        computed.record(computing);
        computed.block(copying);
        auto *event = new c10::Event(device.type());
        try {
            const c10::StreamGuard guard(copying);
            to->copy_(*from, /*non_blocking=*/true);
            event->record(copying);
        } catch (...) {
            delete event;
            throw;
        }
        copied = event;
    });
    return done ? copied : nullptr;
}

// Waits for a copy, which is over then, one way or the other; whether it went well.
extern "C" bool muster_torch_wait(void *download) {
    auto *copied = static_cast<c10::Event *>(download);
    const bool well = tried([&] { copied->synchronize(); });
    delete copied;
    return well;
}

// Bytes that are free on a graphics processor of CUDA; negative if that cannot be known.
extern "C" int64_t muster_torch_free(int64_t number) {
    int64_t free = -1;
    tried([&] {
        const auto device = static_cast<c10::DeviceIndex>(number);
        free = static_cast<int64_t>(c10::getDeviceAllocator(c10::kCUDA)->getMemoryInfo(device).first);
    });
    return free;
}
