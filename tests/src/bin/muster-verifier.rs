//! `muster-verifier`, for tests.

fn main() -> std::process::ExitCode {
    muster_verifier::cli::run(std::env::args_os()).into()
}
