//! The binary `muster`.

/// The system's own one keeps what it was given back: with a model of 10 M parameters a node took 1,158 MiB, and 876 with this one
/// (`tests/bench/memory.py`). Huge pages are kept as long as anything in them is used: with 0.5 M a node took 191 MiB, and 111
/// without them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    muster_replica::process::outlive_bugs();
    muster_compute::give_back_soon();
    muster_compute::try_drivers_apart();
    #[cfg(feature = "tch")]
    muster_compute::launch::provide();
    muster_node::cli::run(std::env::args_os()).into()
}
