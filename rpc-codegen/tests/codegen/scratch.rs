//! An empty folder per test, with `.proto` files and generated files.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use verbwire_codegen::{Builder, Error};

/// Folder of the protos that several tests share.
pub(crate) const PROTOS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/protos");

pub(crate) struct Scratch {
    folder: PathBuf,
}

impl Scratch {
    /// `name` is that of the test.
    pub(crate) fn new(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder).expect("an old scratch folder can be removed");
        }
        let scratch = Self { folder };
        fs::create_dir_all(scratch.protos()).expect("a scratch folder can be made");
        scratch
    }

    pub(crate) fn protos(&self) -> PathBuf {
        self.folder.join("protos")
    }

    pub(crate) fn out(&self) -> PathBuf {
        self.folder.join("out")
    }

    /// Writes a file into the proto folder or one below it, with `proto3` as its first line.
    pub(crate) fn proto(&self, name: &str, text: &str) -> &Self {
        let text = format!("syntax = \"proto3\";\n{text}");
        let path = self.protos().join(name);
        let folder = path.parent().expect("it is in the proto folder");
        fs::create_dir_all(folder).expect("a scratch folder can be made");
        fs::write(path, text).expect("a scratch file can be written");
        self
    }

    /// Compiles files of the scratch folder into it.
    pub(crate) fn compile(&self, builder: Builder, protos: &[&str]) -> Result<(), Error> {
        builder.out_dir(self.out()).compile(protos, &[self.protos()])
    }

    /// Compiles shared protos into the scratch folder, which has to work.
    pub(crate) fn compile_shared(&self, builder: Builder, protos: &[&str]) -> &Self {
        builder
            .out_dir(self.out())
            .compile(protos, &[PROTOS])
            .expect("the shared protos are valid");
        self
    }

    /// The text of an error, with the scratch folder cut from its paths.
    pub(crate) fn text(&self, result: Result<(), Error>) -> String {
        let text = result.expect_err("the input is wrong").to_string();
        text.replace(&format!("{}/", self.folder.display()), "")
    }

    /// All written files, by name.
    pub(crate) fn written(&self) -> BTreeMap<String, String> {
        read_folder(&self.out())
    }

    /// The file of a package.
    pub(crate) fn package(&self, package: &str) -> String {
        let path = self.out().join(format!("verbwire-package.{package}.rs"));
        fs::read_to_string(path).expect("the package was generated")
    }
}

pub(crate) fn read_folder(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).expect("the folder exists");
    entries
        .map(|entry| {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().expect("an entry has a name");
            let name = name.to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).expect("generated files are text");
            (name, text)
        })
        .collect()
}
