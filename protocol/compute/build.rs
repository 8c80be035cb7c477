//! With feature `tch`: builds `torch/settings.cpp`, and tells crates that link programs where libtorch lies.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "tch")]
    torch();
}

#[cfg(feature = "tch")]
fn torch() {
    const SOURCE: &str = "src/torch/settings.cpp";
    let library = std::env::var("DEP_TCH_LIBTORCH_LIB").expect("torch-sys says where it found libtorch");
    println!("cargo::rerun-if-changed={SOURCE}");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .warnings(false)
        .include(format!("{library}/../include"))
        .file(SOURCE)
        .compile("muster_torch");
    // Its own tests and examples; `rpath.rs` does the same in other crates.
    println!("cargo::metadata=libtorch={library}");
    println!("cargo::rustc-link-arg=-Wl,-rpath,{library}");
}
