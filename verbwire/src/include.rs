//! The macros that bring generated code into a crate.

/// Includes the messages and stubs of one protobuf package, as its `build.rs` generated them.
///
/// Paths between packages are relative, as prost writes them: a package `a.b` that refers to `a.c` belongs
/// into `mod a { mod b { .. } mod c { .. } }`. For several packages [`include_protos!`](crate::include_protos)
/// makes these modules by itself.
///
/// ```text
/// mod helloworld {
///     verbwire::include_proto!("helloworld");
/// }
/// ```
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        ::core::include!(::core::concat!(
            ::core::env!("OUT_DIR"),
            "/verbwire-package.",
            $package,
            ".rs"
        ));
    };
}

/// Includes every package that the `build.rs` generated, as a tree of modules named like the packages.
///
/// `include_protos!("store.rs")` includes the packages of those calls of the generator that gave this name to its option
/// `include_file`, and no others.
#[macro_export]
macro_rules! include_protos {
    () => {
        $crate::include_protos!("verbwire-protos.rs");
    };
    ($file:literal) => {
        ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/", $file));
    };
}

/// The encoded `FileDescriptorSet` that the `build.rs` wrote, as a `&'static [u8]`: `"store"` is the file `store.bin` in
/// `OUT_DIR`, which the generator's option `file_descriptor_set_path` names.
///
/// ```text
/// const STORE: &[u8] = verbwire::include_file_descriptor_set!("store");
/// ```
#[macro_export]
macro_rules! include_file_descriptor_set {
    ($name:literal) => {
        ::core::include_bytes!(::core::concat!(::core::env!("OUT_DIR"), "/", $name, ".bin"))
            .as_slice()
    };
}
