//! The binary `muster-verifier`.

fn main() -> std::process::ExitCode {
    muster_replica::process::outlive_bugs();
    muster_compute::try_drivers_apart();
    #[cfg(feature = "tch")]
    muster_compute::launch::provide();
    muster_verifier::run(std::env::args_os()).into()
}
