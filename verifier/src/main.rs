//! The binary `muster-verifier`.

fn main() -> std::process::ExitCode {
    #[cfg(feature = "tch")]
    muster_compute::launch::provide();
    muster_verifier::run(std::env::args_os()).into()
}
