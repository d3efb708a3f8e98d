//! Comments of `.proto` files as Markdown that is safe in Rust documentation.
//!
//! rustdoc takes indented blocks, and fenced blocks without a language, for Rust, and compiles them as tests of the
//! user's crate. Such blocks are marked as text here. Links and brackets are prost's work.

use prost_build::Comments;
use prost_types::FileDescriptorProto;

/// Marks the code blocks in all comments of a file.
pub(crate) fn mark_code(file: &mut FileDescriptorProto) {
    let Some(source) = &mut file.source_code_info else {
        return;
    };
    for location in &mut source.location {
        let comments = [&mut location.leading_comments, &mut location.trailing_comments];
        for comment in comments.into_iter().flatten() {
            *comment = mark_code_blocks(comment);
        }
    }
}

/// Lines of documentation, escaped as prost does for messages.
pub(crate) fn doc_lines(comments: &Comments) -> Vec<String> {
    let attached = Comments { leading_detached: Vec::new(), ..comments.clone() };
    let mut text = String::new();
    attached.append_with_indent(0, &mut text);
    text.lines().map(|line| line.trim_start_matches("///").to_owned()).collect()
}

/// Whether a character changes the direction in which the text around it is shown. rustc refuses them in
/// comments, since they can make code look like something else.
fn turns_text(character: char) -> bool {
    matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn mark_code_blocks(comment: &str) -> String {
    let comment = comment.replace(turns_text, "");
    let mut marker = CodeMarker {
        text: String::with_capacity(comment.len()),
        content: MARGIN,
        place: Place::AfterBlank,
    };
    for line in comment.lines() {
        marker.push(line);
    }
    marker.finish()
}

/// The column of text outside of lists: one space follows the comment's slashes.
const MARGIN: usize = 1;

/// Where in the Markdown the next line is.
#[derive(Clone, Copy)]
enum Place {
    /// At the beginning, or behind a blank line.
    AfterBlank,
    /// Behind a line of text: indentation has no meaning.
    InParagraph,
    Fenced {
        fence: &'static str,
    },
    Indented,
}

struct CodeMarker {
    text: String,
    /// The column at which the text of the present list item begins, or `MARGIN`. Code is four columns further in.
    content: usize,
    place: Place,
}

impl CodeMarker {
    fn push(&mut self, line: &str) {
        let is_blank = line.trim().is_empty();
        match self.place {
            Place::Fenced { fence } => {
                self.append(line);
                if line.trim_start().starts_with(fence) {
                    self.place = Place::AfterBlank;
                }
            }
            Place::Indented if is_blank || self.is_code(line) => self.append(line),
            Place::Indented => {
                self.append_fence("");
                self.push_text(line);
            }
            Place::AfterBlank if !is_blank && self.is_code(line) => {
                self.append_fence("text");
                self.append(line);
                self.place = Place::Indented;
            }
            Place::AfterBlank | Place::InParagraph if is_blank => {
                self.append(line);
                self.place = Place::AfterBlank;
            }
            Place::AfterBlank | Place::InParagraph => self.push_text(line),
        }
    }

    fn push_text(&mut self, line: &str) {
        let content = line.trim_start();
        if let Some(width) = bullet_width(content) {
            self.content = indentation(line) + width;
        } else if indentation(line) < self.content {
            self.content = MARGIN;
        }
        self.place = Place::InParagraph;
        let fence = ["```", "~~~"].into_iter().find(|fence| content.starts_with(fence));
        if let Some(fence) = fence {
            self.place = Place::Fenced { fence };
            if is_rust(content.trim_start_matches(['`', '~']).trim()) {
                let indent = &line[..line.len() - content.len()];
                self.append(&format!("{indent}{fence}text"));
                return;
            }
        }
        self.append(line);
    }

    fn is_code(&self, line: &str) -> bool {
        indentation(line) >= self.content + 4
    }

    fn append_fence(&mut self, language: &str) {
        self.append(&format!("{}```{language}", " ".repeat(self.content)));
    }

    fn append(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn finish(mut self) -> String {
        // An open fence would swallow what prost appends: the trailing comment of the same item.
        match self.place {
            Place::AfterBlank | Place::InParagraph => {}
            Place::Fenced { fence } => self.append(&format!(" {fence}")),
            Place::Indented => self.append_fence(""),
        }
        self.text
    }
}

fn indentation(line: &str) -> usize {
    let spaces = line.chars().take_while(|c| c.is_whitespace());
    spaces.map(|c| if c == '\t' { 4 } else { 1 }).sum()
}

/// Columns from the beginning of a list item to its text, if the line begins one.
fn bullet_width(content: &str) -> Option<usize> {
    let text = content.trim_start_matches(|c: char| c.is_ascii_digit());
    let digits = content.len() - text.len();
    let bullets = if digits > 0 { [". ", ") "].as_slice() } else { &["- ", "* ", "+ "] };
    bullets.iter().any(|bullet| text.starts_with(bullet)).then_some(digits + 2)
}

/// Whether rustdoc takes a block with this language for a test.
fn is_rust(language: &str) -> bool {
    const RUSTDOC_WORDS: [&str; 6] =
        ["rust", "ignore", "no_run", "should_panic", "compile_fail", "standalone_crate"];
    language
        .split([',', ' '])
        .all(|word| word.is_empty() || RUSTDOC_WORDS.contains(&word) || word.starts_with("edition"))
        || language.starts_with('{')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_indented_block_becomes_a_text_block() {
        let comment = " Sends.\n\n     let x = 1;\n\n     f(x);\n\n Then returns.\n";
        let marked = " Sends.\n\n ```text\n     let x = 1;\n\n     f(x);\n\n ```\n Then returns.\n";
        assert_eq!(mark_code_blocks(comment), marked);
    }

    #[test]
    fn an_indented_block_at_the_end_is_closed() {
        assert_eq!(mark_code_blocks("     x\n"), " ```text\n     x\n ```\n");
    }

    #[test]
    fn indentation_that_continues_a_list_or_a_paragraph_is_kept() {
        for comment in [
            " - one\n\n     more of one\n",
            " 1. one\n\n       more of one\n",
            " text\n      more text\n",
        ] {
            assert_eq!(mark_code_blocks(comment), comment);
        }
    }

    #[test]
    fn code_in_a_list_becomes_a_text_block_of_the_item() {
        assert_eq!(
            mark_code_blocks(" - one\n\n       code\n two\n"),
            " - one\n\n   ```text\n       code\n   ```\n two\n"
        );
    }

    #[test]
    fn fences_that_rustdoc_would_compile_become_text() {
        assert_eq!(mark_code_blocks(" ```\n x\n ```\n"), " ```text\n x\n ```\n");
        assert_eq!(mark_code_blocks(" ```rust,ignore\n x\n ```\n"), " ```text\n x\n ```\n");
        assert_eq!(mark_code_blocks(" ~~~\n x\n ~~~\n"), " ~~~text\n x\n ~~~\n");
    }

    #[test]
    fn fences_of_other_languages_are_kept() {
        let comment = " ```json\n     {}\n ```\n after\n";
        assert_eq!(mark_code_blocks(comment), comment);
    }

    #[test]
    fn characters_that_turn_the_text_are_left_out() {
        assert_eq!(mark_code_blocks(" left\u{202e}right\n"), " leftright\n");
    }

    #[test]
    fn an_open_fence_is_closed() {
        assert_eq!(mark_code_blocks(" ```json\n {}\n"), " ```json\n {}\n ```\n");
    }
}
