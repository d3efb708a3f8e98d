//! Rust names of what a service and a package become.
//!
//! Converts on top of prost's own rules, so that stubs and messages always agree.

use heck::ToUpperCamelCase;
use prost_build::Module;

/// Methods that each generated client has by itself. `clone` would not be a double definition, but would hide the
/// `Clone` that every user of a client needs.
const CLIENT_METHODS: [&str; 5] = ["channel", "clone", "in_process", "new", "with_interceptor"];

/// Name of a method in client and trait, given the name that prost made of it.
pub(crate) fn method(prost_name: &str) -> String {
    let underscore = if CLIENT_METHODS.contains(&prost_name) { "_" } else { "" };
    format!("{prost_name}{underscore}")
}

/// Names of what is generated for one service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServiceNames {
    pub(crate) client: String,
    pub(crate) client_module: String,
    pub(crate) server: String,
    pub(crate) server_module: String,
}

impl ServiceNames {
    /// Takes the service's name as a Rust type.
    pub(crate) fn new(service: &str) -> Self {
        // The underscore that prost adds to `Self` is needless, and against the naming lints, in front of a suffix;
        // so is `r#`.
        let camel = service.trim_end_matches('_');
        let snake = module(service);
        let snake = snake.trim_start_matches("r#").trim_end_matches('_');
        Self {
            client: format!("{camel}Client"),
            client_module: format!("{snake}_client"),
            server: format!("{camel}Server"),
            server_module: format!("{snake}_server"),
        }
    }
}

/// Name of a type: prost's rule, which prost keeps to itself.
pub(crate) fn upper_camel(name: &str) -> String {
    match name.to_upper_camel_case() {
        name if name == "Self" => "Self_".to_owned(),
        name => name,
    }
}

/// Name of an enum's value, without the name of the enum in front of it: prost's rule again.
pub(crate) fn enum_value(enum_type: &str, value: &str) -> String {
    let name = upper_camel(value);
    match name.strip_prefix(enum_type) {
        Some(rest) if rest.starts_with(char::is_uppercase) => upper_camel(rest),
        _ => name,
    }
}

/// Rust path of a package's module, as text: `gen.type` is `r#gen::r#type`.
pub(crate) fn module(package: &str) -> String {
    Module::from_protobuf_package_name(package).to_string()
}

/// How the names of all files of this generator begin.
pub(crate) const FILE_PREFIX: &str = "verbwire-";

/// Name of the file that holds a package's items. Packages cannot contain a hyphen, so that no file of prost or tonic has
/// such a name.
pub(crate) fn package_file(package: &str) -> String {
    format!("verbwire-package.{package}.rs")
}

/// Name of the file that holds the module tree of all packages.
pub(crate) const TREE_FILE: &str = "verbwire-protos.rs";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_names_follow_tonics_pattern() {
        let names = ServiceNames::new("HttpProxy");
        assert_eq!(names.client, "HttpProxyClient");
        assert_eq!(names.client_module, "http_proxy_client");
        assert_eq!(names.server, "HttpProxyServer");
        assert_eq!(names.server_module, "http_proxy_server");
    }

    #[test]
    fn keyword_services_lose_the_escape_in_front_of_a_suffix() {
        assert_eq!(ServiceNames::new("Type").client_module, "type_client");
        let names = ServiceNames::new("Self_");
        assert_eq!(names.client, "SelfClient");
        assert_eq!(names.server_module, "self_server");
    }

    #[test]
    fn methods_of_the_client_itself_are_kept_free() {
        for name in CLIENT_METHODS {
            assert_eq!(method(name), format!("{name}_"));
        }
        assert_eq!(method("say_hello"), "say_hello");
        assert_eq!(method("r#type"), "r#type");
    }

    #[test]
    fn values_of_enums_lose_the_name_of_the_enum() {
        for (value, name) in [
            ("KIND_SMALL", "Small"),
            ("KIND_SELF", "Self_"),
            ("SELF", "Self_"),
            ("KINDLY", "Kindly"),
            ("KIND", "Kind"),
            ("KIND_2", "Kind2"),
        ] {
            assert_eq!(enum_value("Kind", value), name);
        }
    }

    #[test]
    fn package_modules_escape_keywords() {
        assert_eq!(module("gen.type"), "r#gen::r#type");
        assert_eq!(module("self"), "self_");
        assert_eq!(module(""), "");
    }
}
