package archive

import (
	"context"
	"strings"
	"sync"
)

// readers is how many manifests are read at once.
const readers = 8

// fulls lists those of a generation and reads their manifests and verdicts.
func (a *Archive) fulls(ctx context.Context, generation Generation) (fulls []KeptFull, orphans []Orphan, err error) {
	fulls, orphans, err = a.listFulls(ctx, generation.Number)
	if err != nil {
		return nil, nil, err
	}
	verdicts, err := a.verdictNames(ctx, generation.Number)
	if err != nil {
		return nil, nil, err
	}
	return fulls, orphans, each(len(fulls), func(i int) error { return a.readFull(ctx, generation, &fulls[i], verdicts[fulls[i].Label]) })
}

// listFulls returns what the listing tells of fulls.
func (a *Archive) listFulls(ctx context.Context, generation int) (fulls []KeptFull, orphans []Orphan, err error) {
	prefix := fullPrefix(generation)
	var waiting []Orphan // of the full that is being listed: its manifest comes last
	of := ""
	for object, err := range a.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, nil, err
		}
		label, part, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "/")
		if label != of {
			orphans, waiting, of = append(orphans, waiting...), nil, label
		}
		if _, _, err := parseFull(label); err != nil || part != "manifest.json" {
			waiting = append(waiting, Orphan{Name: object.Name, Stored: object.Modified, Size: object.Size})
			continue
		}
		full := KeptFull{Label: label, Stored: object.Modified, Size: object.Size}
		for _, other := range waiting {
			full.Size += other.Size
		}
		fulls, waiting = append(fulls, full), nil
	}
	return fulls, append(orphans, waiting...), nil
}

// verdictNames lists the newest verdict of each full, by the full's name.
func (a *Archive) verdictNames(ctx context.Context, generation int) (map[string]string, error) {
	names := map[string]string{}
	prefix := verdictPrefix(generation)
	for object, err := range a.store.List(ctx, prefix, "") {
		if err != nil {
			return nil, err
		}
		full, _, _ := strings.Cut(strings.TrimPrefix(object.Name, prefix), "_")
		names[full] = object.Name
	}
	return names, nil
}

// readFull reads what a full's objects state. What cannot be believed is noted; an error says that it could not be read.
func (a *Archive) readFull(ctx context.Context, generation Generation, kept *KeptFull, verdict string) error {
	var err error
	kept.Full, err = a.Full(ctx, generation.Number, kept.Label)
	if err == nil && kept.Cluster != generation.Cluster {
		err = a.foreign(ManifestName(generation.Number, kept.Label), kept.Cluster, generation.Cluster)
	}
	if err != nil && Disbelieved(err) {
		kept.Err = err
		return nil
	}
	if err != nil || verdict == "" {
		return err
	}
	read, err := a.verdict(ctx, verdict)
	if err == nil {
		kept.Verdict = &read
	} else if Disbelieved(err) { // anybody may have put it there
		kept.VerdictErr, err = err, nil
	}
	return err
}

// each does something for 0 to n-1, several at once, and returns one of the errors.
func each(n int, do func(int) error) error {
	var group sync.WaitGroup
	next, errs := make(chan int), make(chan error, n)
	for range min(n, readers) {
		group.Go(func() {
			for i := range next {
				if err := do(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	group.Wait()
	close(errs)
	return <-errs
}
