//! Programs with libtorch: which of them need it, and what they say where the system finds none, another one, or half of
//! the program.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A copy of the program that finds libtorch only in a folder `torch` beside it; and where the original finds it.
fn carried() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::copy(env!("CARGO_BIN_EXE_e2e-muster"), folder.path().join("muster")).expect("a copy");
    let mut program = std::fs::read(env!("CARGO_BIN_EXE_e2e-muster-torch")).expect("a program");
    let beside = b":$ORIGIN/torch/lib\0";
    let end = program.windows(beside.len()).position(|bytes| bytes == beside).expect("its search path");
    let start = program[..end].iter().rposition(|byte| *byte == 0).expect("a string's begin") + 1;
    let library = String::from_utf8(program[start..end].to_vec()).expect("a path");
    program[start..end].fill(b'x');
    let path = folder.path().join("muster-torch");
    std::fs::copy(env!("CARGO_BIN_EXE_e2e-muster-torch"), &path).expect("a copy"); // with its permissions
    std::fs::write(path, program).expect("a program");
    (folder, library.split(':').next().expect("a path").into())
}

/// What is said where libtorch shall compute on a device that no machine has.
fn computing(folder: &Path) -> String {
    let mut program = Command::new(folder.join("muster"));
    program.args(["bench", "--backend", "tch", "--device", "cuda:99"]).env_remove("LD_LIBRARY_PATH");
    let output = program.output().expect("a program that starts");
    let said = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn only_what_computes_with_libtorch_takes_it() {
    let needs = |program: &str| {
        let bytes = std::fs::read(program).expect("a program");
        bytes.windows(15).any(|name| name == b"libtorch_cpu.so")
    };
    assert!(
        needs(env!("CARGO_BIN_EXE_e2e-muster-torch"))
            && needs(env!("CARGO_BIN_EXE_e2e-muster-verifier-torch"))
    );
    assert!(
        !needs(env!("CARGO_BIN_EXE_e2e-muster")),
        "linked with libtorch: every start takes a second longer"
    );
    assert!(!needs(env!("CARGO_BIN_EXE_e2e-muster-verifier")), "linked with libtorch");
}

#[test]
fn a_missing_libtorch_is_one_sentence_with_the_remedy() {
    let (folder, library) = carried();
    let said = computing(folder.path());
    assert!(said.contains("libtorch_cpu.so") && said.contains("LD_LIBRARY_PATH"), "{said}");
    assert!(said.contains("protocol/compute/libtorch.sh"), "{said}");

    symlink(library.parent().expect("torch"), folder.path().join("torch")).expect("a link");
    let said = computing(folder.path());
    assert!(said.contains("CUDA") && said.contains("--device cpu"), "{said}");
}

#[test]
fn another_libtorch_is_one_sentence_with_the_remedy() {
    let (folder, library) = carried();
    let lies = folder.path().join("torch/lib");
    std::fs::create_dir_all(&lies).expect("a folder");
    for entry in library.read_dir().expect("libtorch") {
        let entry = entry.expect("an entry");
        let file =
            if entry.file_name() == "libtorch_cpu.so" { library.join("libc10.so") } else { entry.path() };
        symlink(file, lies.join(entry.file_name())).expect("a link");
    }
    let said = computing(folder.path());
    assert!(said.contains("is not the 2.11.0") && said.contains("LD_LIBRARY_PATH"), "{said}");
}

#[test]
fn half_of_a_program_names_the_other_half() {
    let (folder, _) = carried();
    std::fs::remove_file(folder.path().join("muster-torch")).expect("a file");
    let said = computing(folder.path());
    assert!(said.contains("muster-torch is missing"), "{said}");
}
