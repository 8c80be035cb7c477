//! Build script of the crates that link programs: with feature `tch`, these find libtorch where the build found it, or
//! in a folder `torch` beside the program.
#![allow(clippy::print_stdout)] // this is how build scripts speak to cargo

fn main() {
    println!("cargo::rerun-if-env-changed=DEP_MUSTER_COMPUTE_LIBTORCH");
    if let Some(library) = std::env::var_os("DEP_MUSTER_COMPUTE_LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", library.display());
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/torch/lib");
    }
}
