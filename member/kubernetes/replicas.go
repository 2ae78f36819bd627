package kubernetes

import (
	"context"
	"fmt"
	"regexp"
	"strconv"

	"github.com/rs/zerolog"
)

var statefulSets = Kind{Group: "apps/v1", Plural: "statefulsets", Noun: "StatefulSet", Verbs: "get"}

// statefulSet has the fields of a StatefulSet that determine its number of pods.
type statefulSet struct {
	Metadata struct {
		DeletionTimestamp string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Spec struct {
		Replicas *int `json:"replicas"`
		Ordinals struct {
			Start int `json:"start"`
		} `json:"ordinals"`
	} `json:"spec"`
}

// Pod identifies a pod of a StatefulSet.
type Pod struct {
	Set     string
	Ordinal int
}

var podName = regexp.MustCompile(`^(.+)-(\d{1,9})$`)

// ParsePod parses the name of a StatefulSet's pod, NAME-ORDINAL.
func ParsePod(name string) (Pod, error) {
	parts := podName.FindStringSubmatch(name)
	if parts == nil {
		return Pod{}, fmt.Errorf("%q is not the name of a StatefulSet's pod", name)
	}
	ordinal, err := strconv.Atoi(parts[2])
	return Pod{parts[1], ordinal}, err
}

// Unwanted returns a function that reports whether the StatefulSet has been scaled down below this pod. If that is
// unknown, the member stays.
func (s *Server) Unwanted(pod Pod, log zerolog.Logger) func(context.Context) bool {
	return func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, Patience)
		defer cancel()
		beyond, err := s.Beyond(ctx, pod)
		if err != nil {
			log.Warn().Err(err).Str("statefulset", pod.Set).Msg("cannot read the number of wanted members; this one stays in its cluster")
		}
		return beyond
	}
}

// Beyond reports whether a StatefulSet has been scaled down so that it no longer includes the pod. A set that is
// deleted or scaled to zero, as for hibernation, keeps its members.
func (s *Server) Beyond(ctx context.Context, pod Pod) (bool, error) {
	var set statefulSet
	if err := s.Get(ctx, statefulSets, pod.Set, &set); err != nil {
		return false, err
	}
	wanted := set.Spec.Replicas
	if wanted == nil || *wanted == 0 || set.Metadata.DeletionTimestamp != "" {
		return false, nil
	}
	return pod.Ordinal >= set.Spec.Ordinals.Start+*wanted, nil
}
