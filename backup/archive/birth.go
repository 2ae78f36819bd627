package archive

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"etcd-wrapper/backup/format/seal"
	"etcd-wrapper/backup/store"
)

// Cluster is the birth certificate of what is backed up: its first cluster. A restore makes another one, in a generation of its
// own.
type Cluster struct {
	seal.Heading
	Cluster string    `json:"cluster"` // etcd's cluster id, hexadecimal
	Created time.Time `json:"created"`
}

// Generation is the history of one cluster id: from the beginning, or from a restore on.
type Generation struct {
	seal.Heading
	Number         int       `json:"number"`             // from 1 on
	Cluster        string    `json:"cluster"`            // etcd's cluster id, hexadecimal
	Parent         int       `json:"parent"`             // the generation that was restored; 0 for none
	ParentRevision int64     `json:"parent_revision"`    // and up to where; 0 for none
	Restore        string    `json:"restore,omitempty"`  // the id of the restore that was asked for; none if data had been lost
	Restored       []string  `json:"restored,omitempty"` // the ids of restores before that one, whose generations may be gone by now
	Session        string    `json:"session,omitempty"`  // of the process that began it: random, hexadecimal
	Created        time.Time `json:"created"`

	signed bool
}

const (
	clusterKind    = "cluster"
	generationKind = "generation"
)

// Cluster returns the birth certificate. store.ErrNotFound says that nothing was ever kept here.
func (a *Archive) Cluster(ctx context.Context) (Cluster, error) {
	var cluster Cluster
	err := a.statement(ctx, clusterName, clusterKind, &cluster)
	if err == nil && cluster.Cluster == "" {
		err = a.damaged(clusterName)
	}
	return cluster, err
}

// Found writes the birth certificate and the first generation, unless they are there, and returns the cluster's newest
// generation. ErrForeign says that the store is another cluster's; then nothing was written. It may be repeated, and called by
// several members at once.
func (a *Archive) Found(ctx context.Context, cluster string, at time.Time) (Generation, error) {
	there, err := a.Cluster(ctx)
	if errors.Is(err, store.ErrNotFound) {
		there, err = a.certify(ctx, cluster, at)
	}
	if err != nil {
		return Generation{}, err
	}
	generation, err := a.GenerationOf(ctx, cluster)
	if !errors.Is(err, ErrForeign) || there.Cluster != cluster {
		return generation, err
	}
	return a.first(ctx, cluster, at)
}

// certify writes the birth certificate. Where nothing but that is missing, it names whoever has begun the first generation.
func (a *Archive) certify(ctx context.Context, cluster string, at time.Time) (Cluster, error) {
	all, err := a.Generations(ctx)
	if err != nil {
		return Cluster{}, err
	}
	certificate := Cluster{Heading: heading(clusterKind), Cluster: cluster, Created: at.UTC().Truncate(time.Second)}
	if len(all) > 0 {
		if _, err := a.newestOf(all, "", cluster); err != nil {
			return Cluster{}, err
		}
		certificate.Cluster = all[0].Cluster
	}
	err = a.state(ctx, clusterName, certificate)
	if errors.Is(err, store.ErrExists) {
		return a.Cluster(ctx)
	}
	return certificate, err
}

// Still looks whether a generation that was there is there, by names alone, since a listing may lack what there is. store.ErrNotFound
// says that it, or the birth certificate, is gone, and ErrForeign that another cluster has begun in its place.
func (a *Archive) Still(ctx context.Context, generation Generation) error {
	if _, err := a.Cluster(ctx); err != nil {
		return err
	}
	there, err := a.generation(ctx, generation.Number)
	if err != nil {
		return err
	}
	_, err = a.newestOf([]Generation{there}, "", generation.Cluster)
	return err
}

// first writes the first generation, of the cluster that the birth certificate names.
func (a *Archive) first(ctx context.Context, cluster string, at time.Time) (Generation, error) {
	err := a.BeginGeneration(ctx, Generation{Number: 1, Cluster: cluster, Created: at})
	if err != nil && !errors.Is(err, store.ErrExists) {
		return Generation{}, err
	}
	return a.GenerationOf(ctx, cluster)
}

// GenerationOf returns the newest generation of a cluster id. ErrForeign says that there is none, though there is a birth
// certificate; store.ErrNotFound that there is neither.
func (a *Archive) GenerationOf(ctx context.Context, cluster string) (Generation, error) {
	certificate, err := a.Cluster(ctx)
	if err != nil {
		return Generation{}, err
	}
	all, err := a.Generations(ctx)
	if err != nil {
		return Generation{}, err
	}
	return a.newestOf(all, certificate.Cluster, cluster)
}

// newestOf is a cluster's newest generation. Where there is none at all, the store is the founder's.
func (a *Archive) newestOf(all []Generation, founder, cluster string) (Generation, error) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Cluster == cluster {
			return all[i], nil
		}
	}
	if len(all) > 0 {
		founder = all[len(all)-1].Cluster
	}
	return Generation{}, fmt.Errorf("%s is %w: it was last written by cluster %s, and this is %s", a.store, ErrForeign, founder, cluster)
}

// Generations returns all of them, in order. ErrNameless says that a later one has backups.
func (a *Archive) Generations(ctx context.Context) (all []Generation, err error) {
	for number, nameless := 0, 0; ; {
		if number, err = a.generationAfter(ctx, number); err != nil || number == 0 {
			return all, cmp.Or(err, a.checkNames(ctx, all, nameless))
		}
		generation, err := a.generation(ctx, number)
		if errors.Is(err, store.ErrNotFound) {
			nameless = number // something of it is left
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, generation)
	}
}

// checkNames is an ErrNameless if the last generation of which there is something is that one, and has backups. Of an older one something
// may be left when it was let go.
func (a *Archive) checkNames(ctx context.Context, all []Generation, nameless int) error {
	if len(all) == 0 || nameless < all[len(all)-1].Number {
		return nil
	}
	told, err := a.toldOf(ctx, nameless)
	if err != nil || told == 0 {
		return err
	}
	return a.named(generationName(nameless), ErrNameless)
}

// generationAfter is the number of the next generation of which there is anything; 0 if there is none.
func (a *Archive) generationAfter(ctx context.Context, number int) (int, error) {
	after := ""
	if number > 0 {
		after = GenerationPrefix(number) + "z" // behind everything in it
	}
	for object, err := range a.store.List(ctx, generationsPrefix, after) {
		if err != nil {
			return 0, err
		}
		var next int
		directory, _, _ := strings.Cut(strings.TrimPrefix(object.Name, generationsPrefix), "/")
		if _, err := fmt.Sscanf(directory, "%d", &next); err == nil && next > number && strings.HasPrefix(object.Name, GenerationPrefix(next)) {
			return next, nil
		}
	}
	return 0, nil
}

// Remains is how names begin of something of a generation that the store has, named or not; empty if it has nothing.
func (a *Archive) Remains(ctx context.Context) (string, error) {
	number, err := a.generationAfter(ctx, 0)
	if err != nil || number == 0 {
		return "", err
	}
	return GenerationPrefix(number), nil
}

func (a *Archive) generation(ctx context.Context, number int) (Generation, error) {
	var generation Generation
	name := generationName(number)
	line, err := a.stated(ctx, name, generationKind, &generation)
	generation.signed = seal.Signed(line)
	if err == nil && (generation.Number != number || generation.Cluster == "") {
		err = a.damaged(name)
	}
	return generation, err
}

// MayAdd is an ErrUnsigned if this process must not add anything to a generation that was read. Ask it before anything is written.
func (a *Archive) MayAdd(to Generation) error {
	if to.signed && !a.keys.Signs() {
		return fmt.Errorf("generation %d in %s is %w", to.Number, a.store, ErrUnsigned)
	}
	return nil
}

// mostRestored is how many ids of restores a generation tells.
const mostRestored = 100

// Restores are the ids of the restores that generations came out of, the last ones, the newest last.
func Restores(generations []Generation) (ids []string) {
	for _, g := range generations {
		for _, id := range append(slices.Clone(g.Restored), g.Restore) {
			if id != "" && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids[max(0, len(ids)-mostRestored):]
}

// BeginGeneration writes a generation. store.ErrExists says that its number is another's: of two that complete one end, one begins what
// follows. It may be repeated within a session. Heading is filled in.
func (a *Archive) BeginGeneration(ctx context.Context, generation Generation) error {
	generation.Heading = heading(generationKind)
	generation.Created = generation.Created.UTC().Truncate(time.Millisecond) // it tells those of one cluster id in two stores apart
	err := a.state(ctx, generationName(generation.Number), generation)
	if errors.Is(err, store.ErrExists) && generation.Session != "" {
		if there, failed := a.generation(ctx, generation.Number); failed == nil && there.Session == generation.Session {
			return nil
		}
	}
	return err
}
