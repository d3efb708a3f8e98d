//! Options of what is written, and where.

use std::path::PathBuf;

use super::Builder;

/// # Files
impl Builder {
    /// Writes into this folder, and makes it if needed, instead of the `OUT_DIR` of the build script.
    ///
    /// The macros of the `verbwire` crate look into `OUT_DIR` only. Include `verbwire-protos.rs` of another folder with
    /// `include!`; it holds the module tree.
    pub fn out_dir(mut self, out_dir: impl Into<PathBuf>) -> Self {
        self.out_dir = Some(out_dir.into());
        self
    }

    /// Writes a module tree under this name as well, of the packages of this call and of others that give the same name.
    ///
    /// Not needed for the tree of all calls: that is `verbwire-protos.rs`, always written, and what `include_protos!()` includes.
    /// `include_protos!("store.rs")` includes the file `store.rs`. The name has no folder.
    pub fn include_file(mut self, name: impl Into<PathBuf>) -> Self {
        self.include_file = Some(name.into());
        self
    }

    /// Writes the descriptors of the files and of all that they import, comments included, as an encoded `FileDescriptorSet`:
    /// what server reflection and other tools read.
    ///
    /// The path is relative to the working directory. `include_file_descriptor_set!("store")` of the `verbwire` crate has the
    /// bytes of the file `store.bin` in `OUT_DIR`.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let out_dir = std::path::PathBuf::from(std::env::var("OUT_DIR")?);
    /// verbwire_codegen::configure()
    ///     .file_descriptor_set_path(out_dir.join("store.bin"))
    ///     .compile(&["proto/store.proto"], &["proto"])?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn file_descriptor_set_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.descriptor_set = Some(path.into());
        self
    }

    /// Whether Cargo is told to run the build script again when one of the files changes that were read. It is by default.
    ///
    /// Without it, and without any other `cargo:rerun-if-..` line, Cargo runs the build script when any file of the package
    /// changes.
    pub fn emit_rerun_if_changed(mut self, enable: bool) -> Self {
        self.emit_rerun_if_changed = enable;
        self
    }
}
