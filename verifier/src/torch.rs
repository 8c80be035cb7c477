//! The binary `muster-verifier-torch`: all of `muster-verifier`, linked with libtorch.

fn main() -> std::process::ExitCode {
    muster_replica::process::outlive_bugs();
    muster_compute::try_drivers_apart();
    muster_compute::Torch::provide();
    muster_verifier::run(std::env::args_os()).into()
}
