//! Build script of the crates that link programs: with feature `tch`, these find libtorch where the build found it, or
//! in a folder `torch` beside the program. Those that start without it (`launch`) are not linked with it.
#![allow(clippy::print_stdout)] // this is how build scripts speak to cargo

fn main() {
    println!("cargo::rerun-if-env-changed=DEP_MUSTER_COMPUTE_LIBTORCH");
    if let Some(library) = std::env::var_os("DEP_MUSTER_COMPUTE_LIBTORCH") {
        println!("cargo::rustc-link-arg=-Wl,-rpath,{}", library.display());
        println!("cargo::rustc-link-arg=-Wl,-rpath,$ORIGIN/torch/lib");
        let without: &[&str] = match std::env::var("CARGO_PKG_NAME").as_deref() {
            Ok("muster-node") => &["muster"],
            Ok("muster-verifier") => &["muster-verifier"],
            Ok("e2e") => &["e2e-muster", "e2e-muster-verifier"],
            _ => &[],
        };
        // What a program exports, it keeps, and with it the library that it comes from.
        for program in without {
            println!("cargo::rustc-link-arg-bin={program}=-Wl,--exclude-libs,ALL");
        }
    }
}
