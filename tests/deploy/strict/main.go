// Command strict reads manifests and holds those of the Prometheus Operator against its own types, with unknown fields
// refused. It prints the rules of a PrometheusRule as the file that Prometheus reads.
//
//	strict < manifests.yaml > rules.yaml
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "strict:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	manifests, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	monitors, rules := 0, 0
	for _, document := range bytes.Split(manifests, []byte("\n---\n")) {
		var meta struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &meta); err != nil {
			return err
		}
		switch meta.APIVersion + " " + meta.Kind {
		case "monitoring.coreos.com/v1 PodMonitor":
			var monitor monitoring.PodMonitor
			if err := decode(document, &monitor); err != nil {
				return fmt.Errorf("PodMonitor: %w", err)
			}
			monitors++
		case "monitoring.coreos.com/v1 PrometheusRule":
			var rule monitoring.PrometheusRule
			if err := decode(document, &rule); err != nil {
				return fmt.Errorf("PrometheusRule: %w", err)
			}
			spec, err := yaml.Marshal(rule.Spec)
			if err != nil {
				return err
			}
			if _, err := out.Write(spec); err != nil {
				return err
			}
			rules++
		}
	}
	if monitors != 1 || rules != 1 {
		return fmt.Errorf("%d PodMonitors and %d PrometheusRules, want one of each", monitors, rules)
	}
	return nil
}

// decode refuses unknown and repeated fields, and is as particular about upper case as an API server: the yaml package's own
// strict mode is not.
func decode(document []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return err
	}
	problems, err := json.UnmarshalStrict(asJSON, into)
	return errors.Join(append(problems, err)...)
}
