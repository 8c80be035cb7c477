//! The layers, enforced: which crate may see which, and which module of core which other.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use e2e::imports::Files;
use muster_core::hash::Domain;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Muster crates that a crate's manifest names outside its dev-dependencies.
fn dependencies(folder: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
    let section = text.split("[dependencies]").nth(1).unwrap_or("");
    let section = section.split("\n[").next().unwrap_or("");
    section
        .lines()
        .filter_map(|line| Some(line.strip_prefix("muster-")?.split(['.', ' ', '=']).next()?.to_owned()))
        .collect()
}

/// Folders of the workspace's crates, in the order of its manifest.
fn crates() -> Vec<String> {
    let text = fs::read_to_string(root().join("Cargo.toml")).expect("the workspace's manifest");
    let members =
        text.split("members = [").nth(1).and_then(|rest| rest.split(']').next()).expect("its members");
    members.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Muster crates that each crate may use; each is below it. Cargo refuses circles, and every path that names another crate.
const LOWER: &[(&str, &[&str])] = &[
    ("protocol/core", &[]),
    ("protocol/compute", &["core"]),
    ("protocol/store", &["core"]),
    ("protocol/net", &["core"]),
    ("protocol/replica", &["core", "compute", "store", "net"]),
    ("protocol/roles", &["core"]),
    ("protocol/view", &["core", "store", "net"]),
    ("verifier", &["core", "compute", "store", "net", "replica", "roles", "view"]),
    ("node/show", &["core", "replica", "view"]),
    ("node/keeper", &["core", "store", "roles"]),
    ("node/organise", &["core", "compute", "store", "net", "replica", "view"]),
    (
        "node/member",
        &["core", "compute", "store", "net", "replica", "roles", "view", "show", "keeper", "organise"],
    ),
    (
        "node/host",
        &["core", "compute", "store", "net", "replica", "roles", "view", "show", "keeper", "organise"],
    ),
    (
        "node/rehearse",
        &[
            "core", "compute", "store", "net", "replica", "roles", "verifier", "view", "show", "organise",
            "host", "member",
        ],
    ),
    (
        "node",
        &[
            "core", "compute", "store", "net", "replica", "view", "show", "organise", "host", "member",
            "rehearse",
        ],
    ),
];

#[test]
fn crates_see_only_lower_ones() {
    for folder in crates().iter().filter(|folder| *folder != "tests") {
        let row = LOWER.iter().find(|(name, _)| name == folder);
        let (_, lower) = row.unwrap_or_else(|| panic!("{folder} has no row"));
        for name in dependencies(folder) {
            assert!(lower.contains(&name.as_str()), "{folder} must not depend on muster-{name}");
        }
    }
}

/// Also in their tests, nobody but the rehearsal plays a verifier, and nobody below it an attack.
#[test]
fn only_the_rehearsal_names_the_verifier() {
    for folder in crates() {
        let text = fs::read_to_string(root().join(&folder).join("Cargo.toml")).expect("a manifest");
        let names = |name: &str| text.lines().any(|line| line.starts_with(name));
        let may_name = |lower: &[&str]| lower.contains(&folder.as_str());
        assert!(
            may_name(&["node/rehearse", "tests"]) || !names("muster-verifier"),
            "{folder} names the verifier"
        );
        assert!(may_name(&["node", "tests"]) || !names("muster-rehearse"), "{folder} names the rehearsal");
    }
}

/// Layers of core, low to high; modules of one row do not see each other.
const CORE_LAYERS: &[&[&str]] = &[
    &["limits", "ids", "ieee", "lock", "bug"],
    &["error"],
    &["codec"],
    &["hash"],
    &["sign", "merkle", "grid", "router", "relays"],
    &["manifest", "packing"],
    &["regime"],
    &["layout"],
    &["rounding"],
    &["state"],
    &["sketch", "coins", "aggregate", "standing"],
    &["messages"],
    &["channel", "contribution"],
    &["assign"],
    &["ledger"],
    &["reduction"],
    &["audit"],
    &["round"],
];

#[test]
fn modules_of_core_import_only_lower_layers() {
    let files = Files::read(&root().join("protocol/core/src"));
    let layer = |module: &str| CORE_LAYERS.iter().position(|row| row.contains(&module));
    // A file of tests may look at everything.
    for file in files.modules().filter(|file| file.last().is_none_or(|name| name != "tests")) {
        let Some(module) = file.first() else { continue };
        let own = layer(module).unwrap_or_else(|| panic!("{module} has no layer"));
        for name in files.imports(file).iter().filter_map(|used| used.first()) {
            let lower = layer(name).is_some_and(|other| other < own);
            assert!(lower || name == module, "{}: {module} must not import {name}", file.join("/"));
        }
    }
}

/// A file imports another one where a path of its production code, in a `use` statement or elsewhere, ends in it. A parent
/// and its submodule are two files: that the parent declares the submodule, or re-exports it, is no import, but what it
/// uses of it is one. Only a file with an `impl` block of a type that is defined above it is one with that file
/// (`impl Ledger` in `ledger/members.rs`).
#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut found = Vec::new();
    for folder in crates() {
        let source = format!("{folder}/src");
        for circle in Files::read(&root().join(&source)).circles() {
            let names: Vec<String> =
                circle.iter().map(|file| format!("{source}/{}", file.join("/"))).collect();
            found.push(names.join(", "));
        }
    }
    assert!(found.is_empty(), "circles of files:\n{}", found.join("\n"));
}

#[test]
fn core_and_roles_touch_nothing_outside_themselves() {
    let banned = [
        "std::time",
        "std::net",
        "std::fs",
        "std::thread",
        "HashMap",
        "HashSet",
        "SystemTime",
        "getrandom",
        "std::env",
        "tokio",
    ];
    for source in ["protocol/core/src", "protocol/roles/src"] {
        let files = Files::read(&root().join(source));
        for file in files.modules() {
            for path in files.written(file) {
                let name = banned.iter().find(|name| path.contains(*name));
                assert!(name.is_none(), "{source}/{} uses {path}", file.join("/"));
            }
        }
    }
}

/// Where `unsafe` is allowed: the kernels, what calls the libraries of graphics processors, and what sets a number of the allocator.
const UNSAFE: [&str; 5] = [
    "protocol/compute/src/allocator.rs",
    "protocol/compute/src/kernel",
    "protocol/compute/src/gpu/cuda.rs",
    "protocol/compute/src/gpu/opencl.rs",
    "protocol/compute/src/torch/library.rs",
];

#[test]
fn only_kernels_and_the_doors_to_graphics_processors_are_unsafe() {
    let manifest =
        |folder: &str| fs::read_to_string(root().join(folder).join("Cargo.toml")).expect("a manifest");
    assert!(manifest("").contains("unsafe_code = \"forbid\""));
    for folder in crates().iter().filter(|folder| *folder != "protocol/compute") {
        assert!(manifest(folder).contains("[lints]\nworkspace = true"), "{folder} has lints of its own");
    }
    assert!(manifest("protocol/compute").contains("unsafe_code = \"deny\""));
    let mut files = Vec::new();
    ["protocol", "node", "verifier", "tests"]
        .iter()
        .for_each(|folder| rust_files(&root().join(folder), &mut files));
    let names = files.iter().filter(|file| {
        // Not this line.
        let lint = concat!("unsafe", "_code)");
        fs::read_to_string(file).expect("a source file").contains(lint)
    });
    for file in names {
        let name = file.strip_prefix(root()).expect("a file of the workspace").to_string_lossy().into_owned();
        assert!(UNSAFE.iter().any(|allowed| name.starts_with(allowed)), "{name} allows unsafe code");
    }
}

/// Silent exits of each crate at most; in `roles` each has its reason in the comment above it. A number falls with a change
/// that leaves fewer, and rises for none.
const SILENT_EXITS: &[(&str, usize)] = &[
    ("protocol/core", 11),
    ("protocol/compute", 11),
    ("protocol/store", 2),
    ("protocol/net", 10),
    ("protocol/replica", 24),
    ("protocol/roles", 15),
    ("protocol/view", 16),
    ("node/show", 3),
    ("node/keeper", 1),
    ("node/organise", 4),
    ("node/member", 15),
    ("node/host", 11),
    ("node/rehearse", 6),
    ("node", 0),
    ("verifier", 5),
];

#[test]
fn silent_exits_are_few_and_those_of_roles_have_their_reasons() {
    for folder in crates().iter().filter(|folder| *folder != "tests") {
        let row = SILENT_EXITS.iter().find(|(name, _)| name == folder);
        let (_, most) = row.unwrap_or_else(|| panic!("{folder} has no bound"));
        let mut files = Vec::new();
        rust_files(&root().join(folder).join("src"), &mut files);
        let mut found = Vec::new();
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file");
            let (production, _) = of_tests(&file, &text);
            for exit in silent_exits(production) {
                let place = format!("{}:{}", file.display(), exit.line);
                assert!(
                    exit.has_reason || folder != "protocol/roles",
                    "{place} ends in silence without a reason"
                );
                found.push(place);
            }
        }
        assert!(found.len() <= *most, "{folder} has more silent exits than {most}:\n{}", found.join("\n"));
    }
}

/// Where a function ends, or a loop goes on, because something is missing, and says nothing.
struct SilentExit {
    line: usize,
    has_reason: bool,
}

/// Every `let … else` whose block gives nothing back (`return`, `return Ok(())`, `continue`) and does nothing else. It is not
/// silent where `or_bug` has spoken, in the statement or in the one before it that makes its value. Nor is `Ok(())` where
/// the function's error is a `Reject` or a `Misuse`: there it is the answer that nothing is wrong.
fn silent_exits(text: &str) -> Vec<SilentExit> {
    let comment = |line: &str| line.trim_start().starts_with("//");
    let lines: Vec<&str> = text.lines().collect();
    let code: Vec<&str> = lines.iter().map(|line| if comment(line) { "" } else { line.trim() }).collect();
    let ends = |word: &&str, index: usize| {
        let in_a_line = code[index].ends_with(&format!("else {{ {word} }};"));
        let block = [format!("{word};"), "};".to_owned()];
        in_a_line
            || code[index].ends_with("else {") && code.get(index + 1..index + 3).is_some_and(|b| *b == block)
    };
    let begins = |last: usize| (0..=last).rev().find(|index| code[*index].starts_with("let "));
    let mut found = Vec::new();
    for index in 0..code.len() {
        let word = ["return", "return Ok(())", "continue"].into_iter().find(|word| ends(word, index));
        let (Some(word), Some(first)) = (word, begins(index)) else { continue };
        let statement = code[first..=index].join(" ");
        let (_, value) = statement.split_once(" = ").expect("a let statement");
        let name = value.split(['.', ' ']).next().unwrap_or_default();
        let before =
            begins(first.saturating_sub(1)).map_or_else(String::new, |before| code[before..first].join(" "));
        let spoken = before.starts_with(&format!("let {name} =")) && before.contains("or_bug(");
        let function = (0..index).rev().find(|line| code[*line].contains("fn ")).unwrap_or_default();
        let function: String =
            code[function..index].iter().take_while(|line| !line.is_empty()).copied().collect();
        let signature = function.split(" {").next().unwrap_or_default();
        let answers = ["Reject>", "Misuse>"].iter().any(|error| signature.contains(error));
        if !(statement.contains("or_bug(") || spoken || answers && word == "return Ok(())") {
            let has_reason = first > 0 && comment(lines[first - 1]);
            found.push(SilentExit { line: first + 1, has_reason });
        }
    }
    found
}

/// Tags of signed kinds, as production code declares them.
fn tags() -> BTreeSet<String> {
    let mut files = Vec::new();
    ["protocol", "node", "verifier"].iter().for_each(|folder| rust_files(&root().join(folder), &mut files));
    let declared = files.iter().flat_map(|file| {
        let text = fs::read_to_string(file).expect("a source file");
        let production = text.split("#[cfg(test)]").next().unwrap_or("").to_owned();
        let tags = production.split("const TAG: &'static str = \"").skip(1);
        tags.map(|rest| rest.split('"').next().unwrap_or("").to_owned()).collect::<Vec<_>>()
    });
    declared.collect()
}

/// HASH-1 and the table of SIGN name what there is, and nothing else.
#[test]
fn every_domain_and_every_tag_is_in_the_specification() {
    let chapter = fs::read_to_string(root().join("spec/encoding.md")).expect("a chapter");
    let listed = chapter.split("Domains: `").nth(1).and_then(|rest| rest.split('`').next()).expect("a list");
    let listed: BTreeSet<String> = listed.split_whitespace().map(|name| format!("muster 1 {name}")).collect();
    let domains: BTreeSet<String> = Domain::ALL.iter().map(|domain| domain.context().to_owned()).collect();
    assert_eq!(listed, domains, "HASH-1");
    let table = chapter.split("| kind | tag | signed by |").nth(1).expect("the table of signed kinds");
    let table = table.split("\n\n").next().expect("its rows");
    let rows = table.lines().filter_map(|row| row.split('|').nth(2));
    let listed: BTreeSet<String> = rows.flat_map(quoted).map(str::to_owned).collect();
    assert_eq!(listed, tags(), "the tags of SIGN");
    let reference = fs::read_to_string(root().join("spec/reference.py")).expect("the reference");
    for tag in tags() {
        assert!(reference.contains(&format!(": \"{tag}\"")), "the reference lacks the tag {tag}");
    }
}

/// Names of rules in a text, like `LEDGER-20`.
fn rules(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|word| {
        word.split_once('-').is_some_and(|(chapter, number)| {
            let named = chapter.len() > 1 && chapter.bytes().all(|c| c.is_ascii_uppercase());
            named && !number.is_empty() && number.bytes().all(|c| c.is_ascii_digit())
        })
    })
}

/// What a Rust file has for tests alone: all of a file of tests, else what follows the first `#[cfg(test)]`.
fn of_tests<'a>(file: &Path, text: &'a str) -> (&'a str, &'a str) {
    let name = file.strip_prefix(root()).expect("a file of the workspace");
    let folders: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
    let tests = folders[0] == "tests" || folders[0] == "fuzz" || folders.iter().any(|part| part == "tests");
    if tests || name.ends_with("tests.rs") {
        return ("", text);
    }
    text.split_at(text.find("#[cfg(test)]").unwrap_or(text.len()))
}

/// Rules that names of functions begin with, like `fn ledger_20_who_is_silent`.
fn rules_of_names(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split("fn ").skip(1).filter_map(|name| {
        let mut words = name.split('_');
        let rule = format!("{}-{}", words.next()?.to_uppercase(), words.next()?);
        rules(&rule).eq([rule.as_str()]).then_some(rule)
    })
}

/// Every rule is named by the code that keeps it, and by a test or vector that shows it.
#[test]
fn every_rule_is_named_where_it_is_kept_and_where_it_is_tested() {
    let mut chapters = String::new();
    for entry in fs::read_dir(root().join("spec")).expect("the specification") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            chapters += &fs::read_to_string(path).expect("a chapter");
        }
    }
    // A definition stands alone between two pairs of asterisks.
    let defined: BTreeSet<&str> = chapters.split("**").filter(|text| rules(text).eq([*text])).collect();
    assert!(defined.len() > 250, "{} rules", defined.len());
    let mut files = Vec::new();
    ["protocol", "node", "verifier", "tests", "fuzz/targets"]
        .iter()
        .for_each(|folder| rust_files(&root().join(folder), &mut files));
    files.retain(|file| !file.ends_with(file!()));
    let (mut kept, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        let (production, tests) = of_tests(&file, &text);
        kept.extend(rules(production).map(str::to_owned));
        tested.extend(rules(tests).map(str::to_owned).chain(rules_of_names(tests)));
    }
    for entry in fs::read_dir(root().join("spec/vectors")).expect("the vectors") {
        let text = fs::read_to_string(entry.expect("an entry").path()).expect("vectors");
        tested.extend(rules(&text).map(str::to_owned));
    }
    let missing = |named: &BTreeSet<String>| -> Vec<&str> {
        defined.iter().copied().filter(|rule| !named.contains(*rule)).collect()
    };
    assert_eq!(missing(&kept), [""; 0], "rules that no production code names");
    assert_eq!(missing(&tested), [""; 0], "rules that no test or vector names");
}

/// What stands between backticks in the text.
fn quoted(text: &str) -> BTreeSet<&str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_index_of_attacks_is_whole() {
    let index = fs::read_to_string(root().join("spec/attacks.md")).expect("the index");
    let quoted = quoted(&index);
    let types =
        fs::read_to_string(root().join("protocol/core/src/messages.rs")).expect("the list of messages");
    for test in quoted.iter().filter(|name| name.contains("::")) {
        let (file, name) = test.split_once("::").expect("a file and a test");
        let text = fs::read_to_string(root().join(file)).unwrap_or_else(|_| panic!("{file} is not there"));
        let macro_made =
            text.contains("for_each_message!(canonical)") && types.contains(&format!("::{name},"));
        assert!(text.contains(&format!("fn {name}(")) || macro_made, "{file} has no test {name}");
    }
    for file in quoted.iter().filter(|name| name.ends_with(".rs")) {
        assert!(root().join(file).is_file(), "{file} is not there");
    }
    let mut files = Vec::new();
    rust_files(&root().join("node/rehearse/src/attack"), &mut files);
    rust_files(&root().join("node/rehearse/src/lie"), &mut files);
    for file in files {
        let name = file.strip_prefix(root()).expect("a file of the workspace").to_string_lossy().into_owned();
        let listed = quoted.iter().any(|quoted| quoted.split("::").next() == Some(&name));
        assert!(listed, "{name} is not in spec/attacks.md");
    }
    for attack in muster_rehearse::attack::ATTACKS {
        assert!(quoted.contains(attack.name), "{} is not in spec/attacks.md", attack.name);
    }
}
