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
#[macro_export]
macro_rules! include_protos {
    () => {
        ::core::include!(::core::concat!(::core::env!("OUT_DIR"), "/verbwire-protos.rs"));
    };
}
