//! The findings for people and for programs.

use std::fmt::Write;

use super::finding::{Finding, Layer, Level};
use super::json::Json;
use super::rules::Build;
use super::tries::{Step, Try};

/// All that the doctor found.
pub(super) struct Report {
    pub(super) build: Build,
    pub(super) findings: Vec<Finding>,
    pub(super) tries: Vec<Try>,
}

impl Report {
    pub(super) fn has_problem(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == Level::Problem)
    }

    /// What to do first: the gravest finding, of those the lowest layer's, since what is above stands on it.
    fn first(&self) -> Option<&Finding> {
        let urgent = self.findings.iter().filter(|finding| finding.level >= Level::Warning);
        // Of equals the first one: min_by_key keeps it, max_by_key would not.
        urgent.min_by_key(|finding| (std::cmp::Reverse(finding.level), finding.layer))
    }

    /// The last line.
    fn conclusion(&self) -> String {
        match self.first() {
            None => "all is well".to_owned(),
            Some(finding) => {
                let action = finding.action.as_deref().unwrap_or(&finding.what);
                format!("first, for the {} in {}: {action}", finding.level, finding.layer)
            }
        }
    }

    pub(super) fn for_people(&self) -> String {
        let rdma = if self.build.has_rdma { "with" } else { "without" };
        let mut text = format!("verbwire {}, built {rdma} rdma\n", env!("CARGO_PKG_VERSION"));
        for layer in Layer::ALL {
            let of_layer: Vec<&Finding> =
                self.findings.iter().filter(|finding| finding.layer == layer).collect();
            let _ = writeln!(text, "\n{layer}");
            if of_layer.is_empty() {
                text.push_str("  nothing to say\n");
            }
            for finding in of_layer {
                let _ = writeln!(text, "  {:8} {}", finding.level, finding.what);
                if let Some(action) = &finding.action {
                    let _ = writeln!(text, "           do: {action}");
                }
            }
        }
        let _ = writeln!(text, "\n{}", self.conclusion());
        text
    }

    pub(super) fn for_programs(&self) -> String {
        let json = Json::Object(vec![
            ("verbwire", Json::text(env!("CARGO_PKG_VERSION"))),
            ("built_with_rdma", Json::Bool(self.build.has_rdma)),
            ("is_well", Json::Bool(!self.has_problem())),
            ("findings", Json::List(self.findings.iter().map(finding_json).collect())),
            ("tries", Json::List(self.tries.iter().map(try_json).collect())),
            ("conclusion", Json::text(self.conclusion())),
        ]);
        format!("{json}\n")
    }
}

fn finding_json(finding: &Finding) -> Json {
    Json::Object(vec![
        ("layer", Json::text(finding.layer.to_string())),
        ("level", Json::text(finding.level.to_string())),
        ("rule", Json::text(finding.rule)),
        ("what", Json::text(&finding.what)),
        ("do", Json::text_or_null(finding.action.as_ref())),
    ])
}

fn try_json(path: &Try) -> Json {
    let is_skipped = path.skipped.is_some();
    Json::Object(vec![
        ("target", Json::text(&path.target)),
        ("works", if is_skipped { Json::Null } else { Json::Bool(path.failure().is_none()) }),
        ("skipped", Json::text_or_null(path.skipped.as_ref())),
        ("route", Json::text_or_null(path.route.as_ref())),
        ("steps", Json::List(path.steps.iter().map(step_json).collect())),
    ])
}

fn step_json(step: &Step) -> Json {
    let microseconds = u64::try_from(step.took.as_micros()).unwrap_or(u64::MAX);
    let words = match &step.result {
        Ok(detail) => detail,
        Err(failure) => &failure.what,
    };
    Json::Object(vec![
        ("step", Json::text(step.name.to_string())),
        ("microseconds", Json::Number(microseconds)),
        ("passed", Json::Bool(step.result.is_ok())),
        ("words", Json::text(words)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(findings: &[(Layer, Level, &str)]) -> Report {
        let findings = findings
            .iter()
            .map(|(layer, level, action)| {
                Finding::new(*layer, *level, "rule", "what").advise(*action)
            })
            .collect();
        Report { build: Build { has_rdma: false }, findings, tries: Vec::new() }
    }

    #[test]
    fn the_last_line_is_the_gravest_finding_of_the_lowest_layer() {
        let report = report(&[
            (Layer::Hardware, Level::Warning, "first warning"),
            (Layer::Protocol, Level::Problem, "high"),
            (Layer::Driver, Level::Problem, "low"),
            (Layer::Driver, Level::Problem, "low as well"),
        ]);
        let text = report.for_people();
        assert_eq!(text.lines().last(), Some("first, for the problem in driver: low"));
        assert!(report.has_problem());
    }

    #[test]
    fn notes_leave_all_well() {
        let report =
            report(&[(Layer::Driver, Level::Note, "x"), (Layer::Protocol, Level::Ok, "y")]);
        assert_eq!(report.for_people().lines().last(), Some("all is well"));
        assert!(report.for_programs().contains("\"is_well\": true"));
    }
}
