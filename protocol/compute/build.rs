//! With feature `tch`: builds the files in C++ of `torch/`, and tells crates that link programs where libtorch lies.
#![allow(clippy::print_stdout)] // this is how build scripts speak to cargo

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "tch")]
    torch();
}

#[cfg(feature = "tch")]
fn torch() {
    const SOURCES: [&str; 2] = ["src/torch/settings.cpp", "src/torch/device.cpp"];
    // With its feature `doc-only`, torch-sys looks for no libtorch: then the code can be checked, and nothing linked.
    let Ok(library) = std::env::var("DEP_TCH_LIBTORCH_LIB") else { return };
    SOURCES.iter().for_each(|source| println!("cargo::rerun-if-changed={source}"));
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .include(format!("{library}/../include"))
        .files(SOURCES)
        .compile("muster_torch");
    // Its own tests and examples; `rpath.rs` does the same in other crates.
    println!("cargo::metadata=libtorch={library}");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{library}");
}
