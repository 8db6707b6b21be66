import type { DiskEntry } from '../../../../shared/directory/disk-record.ts';
import { element, type XmlElement } from '../protocol/xml.ts';

/** The organization of a disk, as which all of its objects and uploads are owned. */
export const ownerElement = (
  { record }: Pick<DiskEntry, 'record'>,
  name: 'Owner' | 'Initiator' = 'Owner',
): XmlElement =>
  element(name, [element('ID', record.organization), element('DisplayName', record.organization)]);
