//! `muster`, for tests.

fn main() -> std::process::ExitCode {
    muster_node::cli::run(std::env::args_os()).into()
}
