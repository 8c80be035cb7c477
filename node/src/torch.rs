//! The binary `muster-torch`: all of `muster`, linked with libtorch.

fn main() -> std::process::ExitCode {
    muster_replica::process::outlive_bugs();
    muster_compute::try_drivers_apart();
    muster_compute::Torch::provide();
    muster_node::cli::run(std::env::args_os()).into()
}
