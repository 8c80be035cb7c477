//! The binary `muster`, for tests.

#[cfg(feature = "tch")]
#[path = "../../../protocol/compute/launch.rs"]
mod launch;

fn main() -> std::process::ExitCode {
    #[cfg(feature = "tch")]
    return launch::start();
    #[cfg(not(feature = "tch"))]
    muster_node::cli::run(std::env::args_os()).into()
}
