//! Sets of which there is no reflection, and why.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use verbwire_reflection::Error;
use verbwire_reflection::pb::server_reflection_request::MessageRequest;
use verbwire_reflection::pb::server_reflection_response::MessageResponse;

use crate::{answer, error, of_shop, shop};

fn file(name: &str, messages: &[&str], imports: &[&str]) -> FileDescriptorProto {
    let message =
        |name: &&str| DescriptorProto { name: Some((*name).to_owned()), ..Default::default() };
    FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some("p".to_owned()),
        message_type: messages.iter().map(message).collect(),
        dependency: imports.iter().map(|import| (*import).to_owned()).collect(),
        ..Default::default()
    }
}

fn set(file: FileDescriptorProto) -> Vec<u8> {
    FileDescriptorSet { file: vec![file] }.encode_to_vec()
}

#[test]
fn a_set_that_does_not_decode_says_which_one_it_is() {
    let cut = &shop()[..shop().len() - 1];
    let found = error(&[shop(), cut]);
    assert!(matches!(found, Error::Decode { set: 2, len, .. } if len == cut.len()), "{found}");
    assert!(found.to_string().contains("descriptor set 2"), "{found}");
    // A set whose file is not one.
    let found = error(&[&[0x0a, 1, 0xff]]);
    assert!(matches!(found, Error::Decode { set: 1, .. }), "{found}");
}

#[test]
fn a_file_without_its_imports_says_what_is_missing() {
    let found = error(&[&set(file("a.proto", &[], &["b.proto"]))]);
    assert!(
        matches!(&found, Error::MissingImport { import, .. } if import == "b.proto"),
        "{found}"
    );
    assert!(found.to_string().contains("--include_imports"), "{found}");
    // It may come from another set, before or after.
    let [a, b] = [file("a.proto", &[], &["b.proto"]), file("b.proto", &[], &[])].map(set);
    for sets in [[&a, &b], [&b, &a]] {
        let builder = sets
            .into_iter()
            .fold(of_shop(), |builder, set| builder.register_encoded_file_descriptor_set(set));
        builder.build_v1().expect("nothing is missing");
    }
}

#[test]
fn two_different_files_of_one_name_are_not_one() {
    let [first, second] = [["A"], ["B"]].map(|messages| set(file("api.proto", &messages, &[])));
    let found = error(&[&first, &second]);
    let Error::SameName { file, symbol } = &found else { panic!("{found}") };
    assert_eq!((&**file, &**symbol), ("api.proto", "p.B"));
}

#[tokio::test]
async fn files_that_import_each_other_are_sent_once() {
    let [a, b] = [("a.proto", "b.proto"), ("b.proto", "a.proto")]
        .map(|(name, import)| set(file(name, &[], &[import])));
    let builder = of_shop().register_encoded_file_descriptor_set(&a);
    let builder = builder.register_encoded_file_descriptor_set(&b);
    let found = answer(builder, MessageRequest::FileByFilename("a.proto".to_owned())).await;
    let MessageResponse::FileDescriptorResponse(files) = found else { panic!("{found:?}") };
    assert_eq!(files.file_descriptor_proto.len(), 2);
}

#[test]
fn what_has_no_name_is_refused() {
    let mut nameless = file("a.proto", &["A"], &[]);
    nameless.message_type[0].name = None;
    let found = error(&[&set(nameless)]);
    assert!(
        matches!(&found, Error::Nameless { file, what: "message" } if file == "a.proto"),
        "{found}"
    );
    let found = error(&[&set(FileDescriptorProto::default())]);
    assert!(matches!(found, Error::Nameless { what: "file", .. }), "{found}");
}

#[test]
fn a_service_that_nobody_declares_cannot_be_listed() {
    let found = of_shop().with_service_name("shop.Nothing").build_v1().expect_err("there is none");
    assert!(matches!(&found, Error::NoSuchService(name) if name == "shop.Nothing"), "{found}");
}
