//! Which source file imports which: the `use` statements and paths of production code, resolved to files.
//!
//! A path leads through modules to the file that it ends in. A name that a file re-exports leads on to where it is from.
//! What is compiled for tests alone does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A module, by the names that lead to it from the root of its crate.
pub type Module = Vec<String>;

/// A path as it is written.
struct Written {
    /// The inline modules of the file that it stands in.
    inline: Vec<String>,
    /// Without groups and aliases.
    names: Vec<String>,
    /// What it is called from then on.
    alias: Option<String>,
    /// Whether it is re-exported.
    public: bool,
}

/// One file.
struct File {
    paths: Vec<Written>,
    /// Types that it has inherent `impl` blocks of.
    impls: BTreeSet<String>,
}

/// The files of a crate.
pub struct Files(BTreeMap<Module, File>);

impl Files {
    /// Reads all files below `src`, but those of binaries.
    ///
    /// # Panics
    /// When a file cannot be read.
    pub fn read(source: &Path) -> Self {
        let mut files = BTreeMap::new();
        read_folder(source, &[], &mut files);
        Self(files)
    }

    /// All files.
    pub fn modules(&self) -> impl Iterator<Item = &Module> {
        self.0.keys()
    }

    /// Every path of a file as it is written, groups resolved, joined by `::`.
    pub fn written(&self, module: &Module) -> impl Iterator<Item = String> {
        self.0.get(module).into_iter().flat_map(|file| file.paths.iter().map(|path| path.names.join("::")))
    }

    /// Files that a file imports from, itself left out. The door that a file opens to its own submodules, by `pub use`, is
    /// no import.
    pub fn imports(&self, module: &Module) -> BTreeSet<Module> {
        let file = &self.0[module];
        let paths = file.paths.iter().filter_map(|path| Some((path, self.target(module, path, 0)?)));
        let counts = |(path, target): &(&Written, Module)| {
            target != module && !(path.public && target.starts_with(module))
        };
        paths.filter(counts).map(|(_, target)| target).collect()
    }

    /// Circles of files, each in order of names.
    ///
    /// A file that goes on with a type of a file above it, in an `impl` block of its own, is one with that file: neither
    /// can be read, or moved, without the other.
    pub fn circles(&self) -> Vec<Vec<Module>> {
        let unit = |module: &Module| {
            let mut unit = module.clone();
            while let Some(above) = self.goes_on(&unit) {
                unit = above;
            }
            unit
        };
        let mut edges: BTreeMap<Module, BTreeSet<Module>> = BTreeMap::new();
        for module in self.modules() {
            let from = unit(module);
            let to = self.imports(module).iter().map(unit).filter(|to| *to != from).collect::<Vec<_>>();
            edges.entry(from).or_default().extend(to);
        }
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            edges.keys().map(|from| (from, reachable(from, &edges))).collect();
        let mut circles = BTreeSet::new();
        for (from, there) in &reached {
            let circle: Vec<Module> =
                there.iter().filter(|to| reached[*to].contains(from)).map(|to| (*to).clone()).collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// The file above whose type a file goes on with.
    fn goes_on(&self, module: &Module) -> Option<Module> {
        let file = &self.0[module];
        let own =
            file.paths.iter().filter(|path| path.names.last().is_some_and(|name| file.impls.contains(name)));
        let mut targets = own.filter_map(|path| self.target(module, path, 0));
        targets.find(|target| target != module && module.starts_with(target) && !target.is_empty())
    }

    /// The file that a path ends in; none where it leads out of the crate, or nowhere.
    fn target(&self, module: &Module, path: &Written, depth: usize) -> Option<Module> {
        let mut here = [&module[..], &path.inline].concat();
        let mut names = &path.names[..];
        match names.first()?.as_str() {
            "crate" => {
                here.clear();
                names = &names[1..];
            }
            "self" => names = &names[1..],
            "super" => {
                while names.first().is_some_and(|name| name == "super") {
                    here.pop()?;
                    names = &names[1..];
                }
            }
            first => {
                let inner = [&here[..], &[first.to_owned()]].concat();
                self.0.get(&inner)?;
            }
        }
        while let Some((first, rest)) = names.split_first() {
            let inner = [&here[..], std::slice::from_ref(first)].concat();
            if !self.0.contains_key(&inner) {
                break;
            }
            (here, names) = (inner, rest);
        }
        // Items of an inline module are in the file that it is written in.
        while !self.0.contains_key(&here) {
            here.pop()?;
        }
        let Some((name, rest)) = names.split_first() else { return Some(here) };
        let exports = self.0[&here].paths.iter().filter(|path| path.public && path.inline.is_empty());
        let mut named = exports.filter(|path| path.alias.as_ref().or(path.names.last()) == Some(name));
        // Names that lead in a ring are nobody's: the compiler refuses them.
        let Some(export) = named.next().filter(|_| depth < 8) else { return Some(here) };
        let (inline, public) = (Vec::new(), export.public);
        let on = Written { inline, names: [&export.names[..], rest].concat(), alias: None, public };
        Some(self.target(&here, &on, depth + 1).unwrap_or(here))
    }
}

fn reachable<'a>(from: &'a Module, edges: &'a BTreeMap<Module, BTreeSet<Module>>) -> BTreeSet<&'a Module> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(module) = left.pop() {
        left.extend(edges.get(module).into_iter().flatten().filter(|next| found.insert(*next)));
    }
    found
}

fn read_folder(folder: &Path, above: &[String], files: &mut BTreeMap<Module, File>) {
    for entry in fs::read_dir(folder).expect("a folder of the workspace") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let module = [above, std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            if name != "bin" {
                read_folder(&path, &module, files);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") && name != "main" {
            let module = if name == "lib" { above.to_vec() } else { module };
            files.insert(module, File::parse(&fs::read_to_string(&path).expect("a source file")));
        }
    }
}

/// What matters of Rust's lexemes: `::` is one token, and so is every name and every other character.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if first == '"' {
            string(rest)
        } else if let Some(raw) = raw_string(rest) {
            raw
        } else if first == '\'' {
            character(rest)
        } else if is_name(first) {
            let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".into());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.into());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

fn string(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    while let Some((place, character)) = characters.next() {
        match character {
            '\\' => drop(characters.next()),
            '"' => return place + 1,
            _ => {}
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let count = hashes.find(|c| c != '#')?;
    let inner = hashes[count..].strip_prefix('"')?;
    let end = inner.find(&format!("\"{}", "#".repeat(count)))?;
    Some(text.len() - inner.len() + end + 1 + count)
}

/// A character, or only the mark of a lifetime.
fn character(text: &str) -> usize {
    if text[1..].starts_with('\\') {
        return text[3..].find('\'').map_or(text.len(), |end| end + 4);
    }
    let mut characters = text.char_indices().skip(2);
    characters.next().filter(|(_, end)| *end == '\'').map_or(1, |(place, _)| place + 1)
}

/// Leaves out what is compiled for tests alone: what follows `#[cfg(test)]`, to its semicolon or closing brace.
fn production(tokens: &[String]) -> Vec<&str> {
    let (mut kept, mut place) = (Vec::new(), 0);
    while let Some(token) = tokens.get(place) {
        if token == "#" && tokens[place..].iter().take(7).eq(["#", "[", "cfg", "(", "test", ")", "]"]) {
            let mut depth = 0;
            place += 7;
            while let Some(token) = tokens.get(place) {
                place += 1;
                match token.as_str() {
                    "{" | "[" | "(" => depth += 1,
                    "}" | "]" | ")" => depth -= 1,
                    _ => {}
                }
                if depth == 0 && matches!(token.as_str(), ";" | "}") {
                    break;
                }
            }
            continue;
        }
        kept.push(token.as_str());
        place += 1;
    }
    kept
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

impl File {
    fn parse(text: &str) -> Self {
        let tokens = tokens(text);
        let tokens = production(&tokens);
        let mut file = Self { paths: Vec::new(), impls: BTreeSet::new() };
        let (mut place, mut depth, mut inline) = (0, 0, Vec::<(usize, String)>::new());
        while let Some(token) = tokens.get(place) {
            let next = tokens.get(place + 1).copied().unwrap_or_default();
            match *token {
                "{" => depth += 1,
                "}" => {
                    depth -= 1;
                    if inline.last().is_some_and(|(at, _)| *at == depth) {
                        inline.pop();
                    }
                }
                // `pub(in path)` says who may see an item, and imports nothing.
                "in" if tokens[..place].ends_with(&["pub", "("]) => {
                    while tokens.get(place).is_some_and(|token| *token != ")") {
                        place += 1;
                    }
                    continue;
                }
                "mod" if tokens.get(place + 2) == Some(&"{") => inline.push((depth, next.to_owned())),
                "impl" => file.impls.extend(inherent(&tokens[place + 1..])),
                // Not what an `impl Trait` captures.
                "use" if next != "<" => {
                    let inline: Vec<String> = inline.iter().map(|(_, name)| name.clone()).collect();
                    let public = is_public(&tokens[..place]);
                    let mut tree = Tree { tokens: &tokens, place: place + 1, found: Vec::new() };
                    tree.read(&[]);
                    place = tree.place;
                    file.paths.extend(tree.found.into_iter().map(|(names, alias)| Written {
                        inline: inline.clone(),
                        names,
                        alias,
                        public,
                    }));
                    continue;
                }
                name if is_name(name) && next == "::" => {
                    let begins =
                        !place.checked_sub(1).is_some_and(|before| matches!(tokens[before], "::" | "$"));
                    let mut names = vec![name.to_owned()];
                    while tokens.get(place + 1) == Some(&"::")
                        && tokens.get(place + 2).is_some_and(|name| is_name(name))
                    {
                        names.push(tokens[place + 2].to_owned());
                        place += 2;
                    }
                    if begins {
                        let inline = inline.iter().map(|(_, name)| name.clone()).collect();
                        file.paths.push(Written { inline, names, alias: None, public: false });
                    }
                }
                _ => {}
            }
            place += 1;
        }
        file
    }
}

/// Whether `pub` or `pub(…)` stands before.
fn is_public(before: &[&str]) -> bool {
    match before.last() {
        Some(&"pub") => true,
        Some(&")") => {
            let open = before.iter().rposition(|token| *token == "(");
            open.is_some_and(|open| open > 0 && before[open - 1] == "pub")
        }
        _ => false,
    }
}

/// The type of an `impl` block without a trait.
fn inherent(tokens: &[&str]) -> Option<String> {
    let head = tokens.iter().position(|token| matches!(*token, "{" | ";" | "where"))?;
    let (mut depth, mut last) = (0, None);
    for token in &tokens[..head] {
        match *token {
            "<" => depth += 1,
            ">" => depth -= 1,
            "for" => return None,
            name if depth == 0 && is_name(name) => last = Some(name.to_owned()),
            _ => {}
        }
    }
    last
}

/// A tree of a `use` statement that is being read.
struct Tree<'a> {
    tokens: &'a [&'a str],
    place: usize,
    found: Vec<(Vec<String>, Option<String>)>,
}

impl Tree<'_> {
    /// Reads one branch, up to what ends it.
    fn read(&mut self, stem: &[String]) {
        let (mut names, mut alias) = (stem.to_vec(), None);
        while let Some(token) = self.tokens.get(self.place).copied() {
            match token {
                ";" | "," | "}" => break,
                "{" => {
                    loop {
                        self.place += 1;
                        self.read(&names);
                        if self.tokens.get(self.place).is_none_or(|token| *token != ",") {
                            break;
                        }
                    }
                    self.place += 1;
                    return;
                }
                "as" => {
                    self.place += 1;
                    alias = self.tokens.get(self.place).map(|name| (*name).to_owned());
                }
                "::" => {}
                // `a::{self, b}`
                "self" if !stem.is_empty() => {}
                name => names.push(name.to_owned()),
            }
            self.place += 1;
        }
        if names != stem || !stem.is_empty() && self.tokens.get(self.place - 1) == Some(&"self") {
            self.found.push((names, alias));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(text: &str) -> Module {
        text.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    fn files(files: &[(&str, &str)]) -> Files {
        Files(files.iter().map(|(name, text)| (module(name), File::parse(text))).collect())
    }

    fn imports(text: &str) -> Vec<String> {
        let all = ["", "a", "a/b", "c", "c/d", "own", "own/inner"].map(|name| (name, ""));
        let mut all = files(&all);
        all.0.insert(module("own"), File::parse(text));
        all.imports(&module("own")).iter().map(|module| module.join("/")).collect()
    }

    #[test]
    fn groups_are_taken_apart() {
        assert_eq!(imports("use crate::{a::{self, b::X}, c::d as e};"), ["a", "a/b", "c/d"]);
        assert_eq!(imports("use super::{a, c::{d::*, Y}};"), ["a", "c", "c/d"]);
        assert_eq!(imports("pub(crate) use crate::a::b::{X, Y};"), ["a/b"]);
        assert_eq!(imports("fn f() -> crate::a::X { inner::f::<crate::c::Y>() }"), ["a", "c", "own/inner"]);
        assert_eq!(imports("mod x { use super::super::a::X; use super::Y; }"), ["a"]);
    }

    #[test]
    fn what_is_no_import_is_left_out() {
        for none in [
            "// use crate::a;",
            "/* use crate::a; */",
            "const X: &str = \"\\\" use crate::a;\"; const Y: char = '\"';",
            "const X: &str = r#\"use crate::a;\"#;",
            "#[cfg(test)] mod tests { use crate::a; fn f() { crate::c::g() } }",
            "#[cfg(test)] use crate::a;",
            "use std::a; use other::c::d;",
            "pub use inner::X;",
            "impl S { pub(in crate::a) fn f() {} }",
            "macro_rules! m { () => { $crate::a::X } }",
        ] {
            assert_eq!(imports(none), [""; 0], "{none}");
        }
        assert_eq!(imports("fn f<'a>(x: &'a str) -> char { '\\'' } use crate::a;"), ["a"]);
        assert_eq!(imports("#[cfg(test)] mod tests; use crate::a;"), ["a"]);
        assert_eq!(imports("pub(in crate::a) fn f() { crate::c::g() }"), ["c"]);
    }

    #[test]
    fn a_name_leads_to_where_it_is_from() {
        let files = files(&[
            ("a", "pub use b::X; pub use crate::c::Y as Z;"),
            ("a/b", ""),
            ("c", ""),
            ("own", "use crate::a::{X, Z};"),
        ]);
        assert_eq!(files.imports(&module("own")), BTreeSet::from([module("a/b"), module("c")]));
    }

    #[test]
    fn circles_are_found() {
        let circle = files(&[
            ("a", "use crate::{b, c::X};"),
            ("b", "use crate::c::Y;"),
            ("c", "use super::a::Z;"),
            ("d", "use crate::a;"),
        ]);
        assert_eq!(circle.circles(), [["a", "b", "c"].map(module).to_vec()]);
        let child = files(&[("a", "mod b; fn f() { b::g() }"), ("a/b", "use super::X;")]);
        assert_eq!(child.circles(), [["a", "a/b"].map(module).to_vec()]);
        let door = files(&[("a", "mod b; pub use b::g;"), ("a/b", "use super::X;")]);
        assert!(door.circles().is_empty());
        let one =
            files(&[("a", "mod b; use b::Y; pub struct X;"), ("a/b", "use super::X; impl<T> X<T> { }")]);
        assert!(one.circles().is_empty());
        let beside = files(&[
            ("a", "use b::Y; use crate::c;"),
            ("a/b", "use super::X; impl X { }"),
            ("c", "use crate::a::b;"),
        ]);
        assert_eq!(beside.circles(), [["a", "c"].map(module).to_vec()]);
    }
}
