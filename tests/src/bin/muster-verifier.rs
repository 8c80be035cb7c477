//! `muster-verifier`, for tests.

fn main() -> std::process::ExitCode {
    muster_verifier::run(std::env::args_os()).into()
}
